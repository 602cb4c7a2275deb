"""A table of the programs that each file of tests compiles: ``pytest --programs``."""

import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import jax
import pytest

COMPILE = "/jax/core/compile/backend_compile_duration"
TRACE = (
    "/jax/core/compile/jaxpr_trace_duration",
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
)
COLUMNS = ("programs", "compiling", "tracing", "CPU")


class Programs:
    """Counts programs, and seconds of compiling, tracing and CPU, by file."""

    def __init__(self) -> None:
        self.table = defaultdict(lambda: dict.fromkeys(COLUMNS, 0.0))
        self.file = "collection"
        self.traces: list[tuple[float, float]] = []
        jax.monitoring.register_event_time_span_listener(self.listen)

    def listen(self, event: str, start: float, end: float, **_: Any) -> None:
        row = self.table[self.file]
        if event == COMPILE:
            row["programs"] += 1
            row["compiling"] += end - start
        if event in TRACE:
            # A trace contains those of the functions that it calls.
            while self.traces and self.traces[-1][0] >= start:
                inner = self.traces.pop()
                row["tracing"] -= inner[1] - inner[0]
            self.traces.append((start, end))
            row["tracing"] += end - start

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.file = item.nodeid.partition("::")[0]
        start = time.process_time()
        result = yield
        self.table[self.file]["CPU"] += time.process_time() - start
        return result

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["programs"] = dict(self.table)

    def pytest_testnodedown(self, node: Any) -> None:
        for file, row in getattr(node, "workeroutput", {}).get("programs", {}).items():
            for column, value in row.items():
                self.table[file][column] += value

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        rows = sorted(self.table.items(), key=lambda row: -row[1]["CPU"])
        sums = {column: sum(row[column] for _, row in rows) for column in COLUMNS}
        terminalreporter.write_line(" ".join(f"{column:>9}" for column in COLUMNS))
        for file, row in (*rows, ("all", sums)):
            numbers = " ".join(f"{row[column]:9.1f}" for column in COLUMNS)
            terminalreporter.write_line(f"{numbers} {file}")
