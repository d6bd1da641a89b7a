"""What every engine promises, on this GPU: all tests of the conformance suite, inherited.

The suite's tests are black boxes over the fixtures `built` and `published`; here `conftest.py`
gives them the cases of this device. A test that is added there runs here too.
"""

from tests.conformance.test_engines import *  # noqa: F403
