"""What the machine says about its memory, from files in the format Linux writes."""

from __future__ import annotations

import pytest

from fastntk.base import memory
from fastntk.base.memory import SHARE, available_memory, memory_allowed
from fastntk.base.text import byte_size


def test_the_smaller_of_machine_and_control_group(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9000 kB\nMemAvailable:    5000 kB\n")
    assert available_memory(meminfo=meminfo, cgroup=tmp_path) == 5000 * 1024
    (tmp_path / "memory.max").write_text("4000000\n")
    (tmp_path / "memory.current").write_text("3000000\n")
    (tmp_path / "memory.stat").write_text("anon 100\ninactive_file 500000\n")
    assert available_memory(meminfo=meminfo, cgroup=tmp_path) == 1_500_000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory(meminfo=meminfo, cgroup=tmp_path) == 5000 * 1024


def test_without_either_the_physical_size_stands_in(tmp_path):
    assert available_memory(meminfo=tmp_path / "none", cgroup=tmp_path / "none") > 10**8
    assert available_memory() > 0


@pytest.mark.parametrize(("size", "text"), [(17, "17 B"), (612e6, "612 MB"), (1.7e10, "17 GB"), (3e15, "3000 TB")])
def test_readable(size, text):
    assert byte_size(size) == text


def test_the_budget_is_what_was_given_or_the_share_of_what_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: 1000)
    assert memory_allowed(None) == int(SHARE * 1000) == 700
    assert memory_allowed(123) == 123
    assert memory_allowed(5) == 5
