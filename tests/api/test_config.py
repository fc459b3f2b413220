"""`config`: process-wide values, patches that nest, threads that do not see each other's
patches."""

import asyncio
import threading

import dynfix
import pytest
from dynfix import config
from dynfix.rewriter.frontend.config import make_options
from dynfix.runtime.errors import OptionError
from dynfix.runtime.options import Options


@pytest.fixture(autouse=True)
def keep_values():
    before = dict(config._base)
    yield
    config.__dict__["_base"] = before


def test_defaults_are_those_of_options():
    assert config.options() == Options() and config.recompile_limit == Options().recompile_limit


def test_setting_reaches_later_compilations():
    config.recompile_limit = 3
    assert make_options().recompile_limit == 3
    assert make_options(options={"recompile_limit": 5}).recompile_limit == 5


def test_arguments_win_over_config_and_modes():
    with config.patch(max_autotune=False, dynamic=True, fullgraph=True, backend="eager"):
        options = make_options(dynamic=False, mode="max-autotune")
        assert options.max_autotune and options.cudagraphs and options.dynamic is False
        assert options.fullgraph and options.backend == "eager"
        assert make_options(backend="aot_eager").backend == "aot_eager"


def test_patch_nests_and_restores():
    with config.patch(recompile_limit=2):
        with config.patch(recompile_limit=3, fusion=False):
            assert (config.recompile_limit, config.fusion) == (3, False)
        assert (config.recompile_limit, config.fusion) == (2, True)
    assert config.recompile_limit == 8


def test_patch_restores_after_an_error():
    with pytest.raises(KeyError), config.patch(fusion=False):
        raise KeyError
    assert config.fusion


@pytest.mark.parametrize("arguments", [("fusion", False), ({"fusion": False},)])
def test_patch_takes_names_and_dicts(arguments):
    with config.patch(*arguments):
        assert config.fusion is False


def test_patch_as_decorator_and_recursively():
    @config.patch(recompile_limit=4)
    def depth(n):
        return [config.recompile_limit] + (depth(n - 1) if n else [])

    assert depth(2) == [4, 4, 4] and config.recompile_limit == 8


def test_one_patch_object_can_be_entered_twice():
    patch = config.patch(recompile_limit=4)
    with patch, patch:
        assert config.recompile_limit == 4
    assert config.recompile_limit == 8


def test_setting_inside_a_patch_ends_with_it():
    with config.patch(recompile_limit=4):
        config.recompile_limit = 5
        config.fusion = False  # not patched here: for the process
        assert config.recompile_limit == 5
    assert (config.recompile_limit, config.fusion) == (8, False)


def test_threads_do_not_see_each_others_patches():
    inside, done, seen = threading.Event(), threading.Event(), []

    def other():
        inside.wait()
        seen.append(config.recompile_limit)
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    with config.patch(recompile_limit=4):
        inside.set()
        done.wait()
    thread.join()
    assert seen == [8]


def test_tasks_do_not_see_each_others_patches():
    async def task(limit):
        with config.patch(recompile_limit=limit):
            await asyncio.sleep(0)
            return config.recompile_limit

    async def both():
        return await asyncio.gather(task(2), task(3))

    assert asyncio.run(both()) == [2, 3]


def test_unknown_names_and_values_are_refused():
    with pytest.raises(OptionError, match="unknown option 'fusoin': use one of backend"):
        config.patch(fusoin=True)
    with pytest.raises(OptionError, match="unknown option"):
        config.fusoin = True
    with pytest.raises(OptionError, match="recompile_limit must be an integer"):
        config.recompile_limit = "8"
    with pytest.raises(OptionError, match="unknown backend"):
        config.backend = "nothing"
    with pytest.raises(AttributeError, match="config has no option 'fusoin'"):
        _ = config.fusoin


def test_list_options_names_what_options_takes():
    for name in dynfix.list_options():
        assert make_options(options={name: getattr(config, name)}) == Options()
    assert "backend" not in dynfix.list_options()


def test_list_mode_options():
    assert dynfix.list_mode_options("default") == {}
    assert dynfix.list_mode_options()["max-autotune"]["max_autotune"]
    dynfix.list_mode_options()["default"]["fusion"] = False
    assert dynfix.list_mode_options("default") == {}
    with pytest.raises(OptionError, match="unknown mode"):
        dynfix.list_mode_options("nothing")
