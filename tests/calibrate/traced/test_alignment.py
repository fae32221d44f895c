"""Ops of a plan aligned with recorded ones."""

from calibrate.traced.recorded_ops import common_name
from calibrate.traced.steps import Token, aligned

A, B, C = (Token(name, ((2, 3),), "forward") for name in "abc")


def test_ops_of_either_side_may_be_missing():
    assert aligned([A, B, C], [A, A, C]) == [(0, 0), (2, 2)]
    assert aligned([B, C], [A, A, B, A, C, A]) == [(0, 2), (1, 4)]
    assert aligned([A], []) == aligned([], [A]) == []


def test_shapes_of_the_plan_are_among_the_recorded_ones():
    recorded = [A._replace(shapes=((2, 4),)), A._replace(shapes=((2, 3), (7,)))]
    assert aligned([A], recorded) == [(0, 1)]
    assert aligned([A, A], recorded, with_shapes=False) == [(0, 0), (1, 1)]


def test_an_op_on_scalars_is_none_on_tensors():
    assert aligned([A._replace(shapes=())], [A]) == []


def test_the_phase_decides_between_two_ops_that_are_alike():
    assert aligned([A._replace(phase="backward")], [A, A._replace(phase="backward"), A]) == [(0, 1)]


def test_names_of_versions_and_libraries_are_one():
    assert {common_name(name) for name in ("aten.convolution.default", "aten::conv2d", "aten::cudnn_convolution")} == {"convolution"}
    assert common_name("aten::relu_") == common_name("aten.relu_.default") == "relu"
    assert common_name("aten::_batch_norm_impl_index") == common_name("aten.native_batch_norm.default")
    forward = (
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        "aten::scaled_dot_product_attention",
        "aten::_flash_attention_forward",
    )
    assert {common_name(name) for name in forward} == {"attention"}
    assert common_name("aten::_scaled_dot_product_efficient_attention_backward") == "attention_backward"
