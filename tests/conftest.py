"""What all tests share."""

import signal

import pytest


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_works():
    """A shell starts its background jobs with SIGINT ignored, and what we start would inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
