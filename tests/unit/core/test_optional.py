"""Optional packages: the question costs no import, the error says what to install."""

from __future__ import annotations

import sys

import pytest

from drivetrain.core.errors import ConfigError, MissingDependency
from drivetrain.core.optional import installed, require
from drivetrain.core.registry import find, names


def test_installed_asks_without_importing():
    sys.modules.pop("this_is_no_package", None)
    assert not installed("this_is_no_package")
    assert installed("pytest")


def test_blocked_package_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "wave", None)
    assert not installed("wave")


def test_missing_package_names_the_command():
    with pytest.raises(MissingDependency, match=r"tracker 'x' needs .*no-such-package>=2.*pip install"):
        require("no-such-package>=2", needed_by="tracker 'x'")
    assert issubclass(MissingDependency, ImportError)


def test_old_package_names_both_versions():
    with pytest.raises(MissingDependency, match=r"pytest>=9999.*is installed"):
        require("pytest>=9999", needed_by="this test")


def test_registry_lists_without_importing_and_explains_unknown_names():
    from drivetrain.strategies.base import Strategy

    assert {"single", "ddp"} <= set(names("strategies"))
    assert find("strategies", "ddp", Strategy).__name__ == "Ddp"
    with pytest.raises(ConfigError, match="'zero9'.*ddp.*single"):
        find("strategies", "zero9", Strategy)
