"""IDs of the form "module:ID"."""

import sys
from pathlib import Path

import pytest

from mikasa_robo.env_ids import EnvIdError, import_env_id, split_env_id


def test_a_plain_id_names_no_module() -> None:
    assert split_env_id("RememberColor3-v0") == (None, "RememberColor3-v0")
    assert import_env_id("RememberColor3-v0") == "RememberColor3-v0"


def test_the_module_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_tasks_imported.py").write_text("LOADED = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert import_env_id("my_tasks_imported:Mine-v0") == "Mine-v0"
    assert sys.modules.pop("my_tasks_imported").LOADED


@pytest.mark.parametrize("env_id", [":Mine-v0", "module:", "a b:Mine-v0", "a:b:Mine-v0", "a..b:Mine-v0"])
def test_a_malformed_id_is_named(env_id: str) -> None:
    with pytest.raises(EnvIdError, match=r"module:ID"):
        import_env_id(env_id)


@pytest.mark.parametrize("env_id", ["no_such_module:Mine-v0", "mikasa_robo.no_such:Mine-v0"])
def test_a_missing_module_is_named(env_id: str) -> None:
    with pytest.raises(EnvIdError, match=r"no module .*no_such"):
        import_env_id(env_id)


def test_what_the_module_lacks_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_tasks_broken.py").write_text("import not_installed_at_all\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="not_installed_at_all"):
        import_env_id("my_tasks_broken:Mine-v0")
