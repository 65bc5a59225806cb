"""What the client's errors are, and that they survive the way between processes."""

import pickle

import pytest

from rollbook_client import RolloutAdmissionTimeoutError, RolloutError, RolloutProtocolError


def test_protocol_error_is_a_runtime_error_with_its_status() -> None:
    error = RolloutProtocolError("no", status_code=503)
    assert isinstance(error, RolloutError)
    assert isinstance(error, RuntimeError)
    assert (str(error), error.status_code, error.code) == ("no", 503, "protocol_error")


def test_admission_timeout_is_a_timeout_error_that_says_what_may_have_happened() -> None:
    error = RolloutAdmissionTimeoutError("late", rollout_id="r1", may_have_been_admitted=True)
    assert isinstance(error, RolloutError)
    assert isinstance(error, TimeoutError)
    assert (str(error), error.rollout_id, error.may_have_been_admitted) == ("late", "r1", True)


@pytest.mark.parametrize(
    "error",
    [
        RolloutProtocolError("no", status_code=409),
        RolloutAdmissionTimeoutError("late", rollout_id="r1", may_have_been_admitted=False),
    ],
)
def test_errors_can_be_pickled(error: RolloutError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (str(copy), vars(copy)) == (str(error), vars(error))
