import sys

import pytest

from rl_api.errors import TaskError
from rl_trainer.tasks.functions import file_of, load_class, load_function


@pytest.fixture(autouse=True)
def _modules_restored(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = dict(sys.modules)
    yield
    for name in set(sys.modules) - set(before):
        del sys.modules[name]


def write(folder, name, text):
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_a_module_beside_the_run_file(tmp_path):
    write(tmp_path, "my_rewards.py", "from helper_of_mine import two\ndef f(p, c, a): return two\n")
    write(tmp_path, "helper_of_mine.py", "two = 2\n")
    assert load_function("my_rewards:f", tmp_path)({}, "", "") == 2


def test_a_module_inside_a_package(tmp_path):
    write(tmp_path, "mine/__init__.py", "")
    write(tmp_path, "mine/rewards.py", "def f(p, c, a): return 3\n")
    assert load_function("mine.rewards:f", tmp_path)({}, "", "") == 3


def test_an_installed_module():
    assert load_function("math:hypot")(3, 4) == 5


def test_the_folder_comes_before_what_another_run_imported(tmp_path):
    for number in (1, 2):
        write(tmp_path / str(number), "same_name.py", f"def f(p, c, a): return {number}\n")
        assert load_function("same_name:f", tmp_path / str(number))({}, "", "") == number


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "my_rewards:legnth",
            r"module my_rewards has no 'legnth', it offers Thing, later, length; did you mean .*:length\?",
        ),
        ("my_rewards:Thing", r"my_rewards:Thing is not a function but a class"),
        ("my_rewards:number", r"my_rewards:number is not a function but a int"),
        ("my_rewards:later", r"my_rewards:later is an async function"),
        (
            "my_rewardz:length",
            r"there is no module 'my_rewardz' beside .*; beside the run file: broken, my_rewards, needs",
        ),
        ("my_rewards.sub:length", r"there is no module 'my_rewards.sub'"),
        ("my_rewards", r"found 'my_rewards', allowed: module:name"),
        ("broken:f", r"module broken cannot be imported: SyntaxError: .* \(.*broken.py:2\)"),
        ("needs:f", r"module needs cannot be imported: No module named 'not_there' \(.*needs.py:1\)"),
        ("wrong:f", r"module wrong cannot be imported: ZeroDivisionError: .* \(.*wrong.py:1\)"),
        ("quits:f", r"module quits cannot be imported: SystemExit: 3 "),
    ],
)
def test_errors(tmp_path, path, message):
    write(
        tmp_path,
        "my_rewards.py",
        "from math import sin\nnumber = 1\ndef length(p, c, a): pass\nclass Thing: pass\n"
        "async def later(p, c, a): pass\ndef _own(): pass\n",
    )
    write(tmp_path, "broken.py", "x = 1\ndef f(:\n")
    write(tmp_path, "needs.py", "import not_there\n")
    write(tmp_path, "wrong.py", "1 / 0\n")
    write(tmp_path, "quits.py", "import sys; sys.exit(3)\n")
    with pytest.raises(TaskError, match="^task.rewards.function: " + message):
        load_function(path, tmp_path)


def test_a_module_that_is_not_there_without_a_folder():
    with pytest.raises(TaskError, match=r"there is no module 'not_there_at_all' installed$"):
        load_function("not_there_at_all:f")


def test_a_class(tmp_path):
    write(tmp_path, "worlds.py", "class World: pass\ndef f(): pass\n")
    assert load_class("worlds:World", tmp_path).__name__ == "World"
    with pytest.raises(TaskError, match=r"task.name: worlds:f is not a class but a function"):
        load_class("worlds:f", tmp_path)


def test_source_file_of_functions_and_classes(tmp_path):
    file = write(tmp_path, "sources.py", "class World: pass\ndef f(): pass\n")
    assert file_of(load_class("sources:World", tmp_path)) == str(file)
    assert file_of(load_function("sources:f", tmp_path)) == str(file)
    assert file_of(len) is None
