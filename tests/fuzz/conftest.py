"""One child process for all readers; the table of what was tried, at the end."""

import pytest
from hostile import SECONDS, Fuzzing, report

_COUNTS = {}


@pytest.fixture(scope="session")
def fuzzing(tmp_path_factory, request):
    readers = sum("test_damaged" in item.nodeid for item in request.session.items)
    session = Fuzzing(tmp_path_factory.mktemp("fuzz"), readers)
    yield session
    session.end()
    _COUNTS.update(session.counts)


def pytest_terminal_summary(terminalreporter):
    if _COUNTS and SECONDS:
        terminalreporter.section("readers attacked")
        for line in report(_COUNTS):
            terminalreporter.write_line(line)
