"""Errors keep what they say when they cross to another process."""

import pickle

from tbrl.errors import BackendFailure
from tbrl.schedule import PoolExhausted


def test_errors_come_out_of_another_process_as_they_went_in() -> None:
    failure = pickle.loads(pickle.dumps(BackendFailure("deadline", "find_rental", "no answer")))
    assert (failure.kind, failure.where, failure.detail) == (
        "deadline",
        "find_rental",
        "no answer",
    )
    exhausted = PoolExhausted(2, 16, ("a",), ("b",), ())
    assert str(pickle.loads(pickle.dumps(exhausted))) == str(exhausted)
