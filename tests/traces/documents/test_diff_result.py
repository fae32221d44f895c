"""The document of a difference adds up, or is refused."""

import pytest
from pydantic import ValidationError

from traces.documents.diff_result import Diff, DiffTerm


@pytest.mark.parametrize(("difference_s", "term_s", "fault"), [(0.03, 0.03, "is not that of the two steps"), (0.02, 0.01, "do not add up")])
def test_a_difference_that_does_not_add_up_is_refused(difference_s, term_s, fault):
    terms = (DiffTerm(part="kernels", seconds=term_s),)
    numbers = {"a_step_s": 0.10, "b_step_s": 0.12, "difference_s": difference_s, "terms": terms, "remainder_s": 0.0, "steps": 1}
    with pytest.raises(ValidationError, match=fault):
        Diff(compared="traces", a="a", b="b", aligned_share=1.0, **numbers)
