"""A compiler's own words."""

import warnings

import pytest

from compiler_worker.builders.failures import build_errors, check_available, recorded_warnings
from services.contracts.errors import BuildError, BuildUnavailableError, UnsupportedGraphError


def test_foreign_errors_become_build_errors_with_their_text() -> None:
    with pytest.raises(BuildError) as caught, build_errors("the compiler failed"):
        raise RuntimeError("no such kernel\nat line 2")
    assert str(caught.value) == "the compiler failed: RuntimeError: no such kernel"
    assert caught.value.log_tail == ("no such kernel", "at line 2")
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_line_that_announces_others_is_told_with_them() -> None:
    words = ["Exception from core.cpp:84:", "Summary:", "-- No rule for Optional-20", ""]
    with pytest.raises(BuildError) as caught, build_errors("refused"):
        raise RuntimeError("\n".join(words))
    told = "Exception from core.cpp:84: Summary: -- No rule for Optional-20"
    assert str(caught.value) == f"refused: RuntimeError: {told}"
    with pytest.raises(BuildError) as caught, build_errors("refused"):
        raise RuntimeError("\n".join(["All of it:", *["one more"] * 100]))
    assert str(caught.value).endswith(" ...")
    assert len(str(caught.value)) < 450


def test_an_error_without_text_is_named_by_its_class() -> None:
    with (
        pytest.raises(BuildError, match="failed: KeyboardError: KeyboardError"),
        build_errors("failed"),
    ):
        raise type("KeyboardError", (Exception,), {})


def test_our_own_errors_pass_unchanged() -> None:
    with pytest.raises(UnsupportedGraphError), build_errors("x"):
        raise UnsupportedGraphError("no such op")


def test_warnings_become_findings_once_and_deprecations_do_not() -> None:
    with recorded_warnings() as findings:
        for _ in range(2):
            warnings.warn("precision is lost", UserWarning, stacklevel=1)
        warnings.warn("use the new name", DeprecationWarning, stacklevel=1)
    assert findings == ["precision is lost"]


def test_a_reason_refuses_and_no_reason_does_not() -> None:
    check_available("", "an engine")
    with pytest.raises(BuildUnavailableError, match="an engine cannot be built .*: no device"):
        check_available("no device", "an engine")
