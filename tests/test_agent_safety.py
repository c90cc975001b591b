"""Files and folders that others could write, and the mode of the agent's socket."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from running_agent import BASE, agent, command
from users import AGENT, NOBODY, SOMEBODY, allowing, as_user, place

from hostagent import safety
from hostagent.safety import UnsafeError

__all__ = ["place"]


def write(place: Path, **api) -> Path:
    file = place / "agent.yaml"
    file.write_text(json.dumps(BASE | {"api": {"socket": str(place / "run" / "s")} | api}))
    file.chmod(0o600)
    return file


def refused(file: Path) -> str:
    done = command(*AGENT, str(file))
    assert done.returncode == 3 and "Traceback" not in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1
    return done.stderr


def test_a_configuration_that_others_can_write_is_not_believed(place):
    file = write(place)
    file.chmod(0o602)
    assert f"--config: {file} can be written by others (mode 0602): chmod go-w {file}" in refused(file)
    file.chmod(0o600)
    place.chmod(0o757)
    assert f"--config: {place} can be written by others" in refused(file)
    assert not (place / "run").exists(), "nothing was made before it was refused"


@pytest.mark.root
def test_a_file_or_folder_of_another_user_or_group_is_not_believed(place):
    file = write(place)
    os.chown(file, NOBODY, -1)
    with pytest.raises(UnsafeError, match="belongs to user 65534, not to root"):
        safety.check_file(file, "--config")
    with (
        as_user(NOBODY),
        pytest.raises(UnsafeError, match=r"belongs to user 65533, not to root or user 65534"),
    ):
        os.seteuid(0)
        os.chown(file, SOMEBODY, -1)
        file.chmod(0o644)
        os.seteuid(NOBODY)
        safety.check_file(file, "--config")
    os.chown(file, 0, NOBODY)
    file.chmod(0o660)
    with pytest.raises(UnsafeError, match=r"can be written by group 65534 \(mode 0660\)"):
        safety.check_file(file, "--config")
    os.chown(file, 0, 0)
    safety.check_file(file, "--config")
    link = place / "link.yaml"
    link.symlink_to(file)
    file.chmod(0o666)
    with pytest.raises(UnsafeError, match="written by others"):
        safety.check_file(link, "--config")


def test_a_folder_above_counts_unless_it_is_sticky(place):
    inner = place / "a" / "b"
    inner.mkdir(parents=True)
    safety.check_folder(inner, "api.socket")
    (place / "a").chmod(0o777)
    with pytest.raises(UnsafeError, match=f"api.socket: {place / 'a'} can be written by others"):
        safety.check_folder(inner, "api.socket")
    (place / "a").chmod(0o1777)
    safety.check_folder(inner, "api.socket")
    with pytest.raises(UnsafeError, match=r"a can be written by others \(mode 1777\)"):
        safety.check_folder(place / "a", "api.socket")


def test_a_socket_is_not_put_where_others_could_put_one(place):
    file = write(place)
    (place / "run").mkdir()
    (place / "run").chmod(0o777)
    assert f"api.socket: {place / 'run'} can be written by others" in refused(file)
    assert list((place / "run").iterdir()) == []


@pytest.mark.parametrize(("users", "mode"), [((), 0o600), ((NOBODY,), 0o666)])
def test_the_socket_s_mode_lets_in_whom_the_configuration_names(place, users, mode):
    with agent(place, allowing(*users)) as (path, _):
        assert Path(path).stat().st_mode & 0o777 == mode
        assert Path(path).stat().st_uid == os.geteuid()
