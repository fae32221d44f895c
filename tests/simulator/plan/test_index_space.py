"""The string that says how an op divides."""

import pytest

from simulator.plan.index_space import BROADCAST, EACH, Dim, Form, Term, parse


def test_a_product_names_the_dimensions_of_its_operands():
    space = parse("m k+, k+ n -> m n")
    assert space.arguments == (
        Term(Form.TENSOR, (Dim("m"), Dim("k", summed=True))),
        Term(Form.TENSOR, (Dim("k", summed=True), Dim("n"))),
    )
    assert space.results == (Term(Form.TENSOR, (Dim("m"), Dim("n"))),)


def test_several_dimensions_flags_lists_and_named_arguments():
    space = parse("[t*], ?, ?t*, ^, mask=(t* q^) -> t*")
    tensors, other, flag, whole = space.arguments
    assert tensors == Term(Form.TENSORS, (Dim("t", several=True),))
    assert (other.form, whole.form) == (Form.OTHER, Form.WHOLE)
    assert flag == Term(Form.FLAG, (Dim("t", several=True),))
    assert dict(space.named) == {"mask": Term(Form.BROADCAST, (Dim("t", several=True), Dim("q", whole=True)))}


def test_one_term_stands_for_every_tensor_that_is_broadcast():
    assert parse(EACH).every
    assert not parse("..., ^ -> ...").every
    assert parse(EACH).arguments == (Term(Form.BROADCAST, (Dim(BROADCAST, several=True),)),)


@pytest.mark.parametrize("text", ["m k, k n", "m kk -> m", "m k, k n -> m n", "m $ -> m", "m -> m, n m, "])
def test_a_string_that_cannot_be_read_is_refused(text):
    with pytest.raises(ValueError, match=r"arrow|dimension|lacks"):
        parse(text)
