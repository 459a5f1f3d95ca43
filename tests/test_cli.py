"""The command line as a contract: commands, options, exit codes, what goes to stdout and what to stderr."""

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from test_results import record
from typer.testing import CliRunner

from bench import cli, registry
from bench.results import write
from ringbench import places
from ringbench.errors import RingbenchError, Unavailable, UsageError, sentence

ROOT = Path(cli.__file__).parent.parent
CONTRACT = {
    "": "--registry --offline --debug",
    "list": "--json",
    "show": "",
    "validate": "",
    "run": "--backbone --task --seed --device --dtype --data --results --dry-run --json --force --on-bad-image --download "
    "--batch --iterations --nproc --no-overfit-check",
    "register": "--arch --stem --format --checkpoint-key --pipeline --imageset --alias",
    "convert": "--to --out --arch --stem --format --checkpoint-key --pipeline",
    "registry": "",
    "registry verify": "--online",
    "pretrain": "--set --device --data --out --resume --force --dry-run --nproc",
    "leaderboard": "",
    "leaderboard show": "--results --task",
    "leaderboard export": "--results --format --out --task --wide",
    "doctor": "",
    "setup": "--from-source",
    "show-predictions": "--out --images --score --data",
    "demo": "",
}
BROKEN = "backbones:\n  net:\n    titel: x\n"


def invoke(*arguments: str):
    return CliRunner().invoke(cli.app, list(arguments))


@pytest.mark.parametrize("command, options", CONTRACT.items())
@pytest.mark.parametrize("help", ["-h", "--help"])
def test_each_command_has_exactly_the_options_of_the_contract(command: str, options: str, help: str):
    result = invoke(*command.split(), help)
    assert result.exit_code == 0
    assert set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", result.stdout, re.MULTILINE)) == {*options.split(), "--help"}


def test_the_commands_are_those_of_the_contract():
    commands = invoke("-h").stdout.partition("Commands:\n")[2].partition("\n\n")[0]
    assert set(re.findall(r"^  ([\w-]+)", commands, re.MULTILINE)) == {command.split()[0] for command in CONTRACT if command}
    assert "..." not in commands


# --- list, show, validate


def test_list_shows_every_name_once_and_one_section_on_demand():
    known = registry.load()
    everything = invoke("list").stdout.splitlines()
    for section in registry.SECTIONS:
        for name in getattr(known, section):
            assert sum(line.split()[:1] == [name] for line in everything) == 1
    tasks = invoke("list", "tasks").stdout.splitlines()
    assert [line.split()[0] for line in tasks[2:]] == list(known.tasks)
    assert invoke("list", "models").exit_code == 2


def test_list_piped_keeps_each_entry_to_one_plain_line():
    Path("registry.yaml").write_text(
        f"backbones:\n  {'n' * 100}:\n    title: t\n    arch: resnet18\n    source: random\n    pipeline: rgb\n"
        f"    pretraining: {'long ' * 60}\n"
    )
    lines = invoke("list", "backbones").stdout.splitlines()
    assert len(lines) == 2 + len(registry.load().backbones)
    assert "n" * 100 in lines[-1] and ("long " * 60).strip() in lines[-1]
    assert "\x1b" not in "".join(lines) and not any(line.endswith(" ") for line in lines)


def test_list_as_json_is_the_whole_registry_on_stdout_alone():
    result = invoke("list", "--json")
    assert result.stderr == ""
    found, known = json.loads(result.stdout), registry.load()
    assert list(found) == list(registry.SECTIONS)
    assert [entry["name"] for entry in found["tasks"]] == list(known.tasks)
    assert found["backbones"][0] == known.backbones["random_resnet18"].model_dump(mode="json")
    assert list(json.loads(invoke("list", "protocols", "--json").stdout)) == ["protocols"]


@pytest.mark.parametrize(
    "name, facts",
    [
        (
            "irings_imagenet",
            ["backbone iring_imagenet (irings_imagenet is an alias)", "not trained yet", "recipe iring_imagenet"],
        ),
        ("torchvision_resnet18", ["resnet18-f37072fd.pth is not in", "--download", "supervised, ImageNet"]),
        ("random_resnet18", ["backbone random_resnet18", "normalize(dataset)", "available    yes"]),
        ("cifar10", ["image set cifar10", "cifar10_linear, cifar10_logreg, cifar10_knn", "https://www.cs.toronto.edu"]),
        ("ring-linear@1", ["weight_decay: 0.0", "epochs: 100", "arXiv 2010.02037", "dtd_linear"]),
        ("digits_knn", ["temperature: 0.07", "k: 10, 20, 100, 200", "resize(64,bilinear)", "level       pooled"]),
    ],
)
def test_show_tells_everything_about_a_name_of_any_section(name: str, facts: list[str]):
    result = invoke("show", name)
    assert result.exit_code == 0
    assert all(fact in result.stdout for fact in facts), result.stdout
    assert re.search(r"written in +\S+(registry|encoders)\.yaml:\d+\n", result.stdout)


def test_show_of_an_unknown_name_is_a_usage_error_with_the_nearest():
    result = invoke("show", "dtd_nkn")
    assert (result.exit_code, result.stdout) == (2, "")
    assert (
        result.stderr == 'error: nothing is called "dtd_nkn"; did you mean "dtd_knn" or "dtd"?; `bench list` shows every name\n'
    )


def test_validate_is_silent_about_nothing(tmp_path: Path):
    good = invoke("validate")
    assert good.exit_code == 0 and " tasks" in good.stdout
    (tmp_path / "bad.yaml").write_text(BROKEN + "    arhc: y\n")
    bad = invoke("validate", "bad.yaml")
    assert bad.exit_code == 2
    assert re.findall(r"^bad\.yaml:(\d+): ", bad.stdout, re.MULTILINE) == ["2", "3", "4"]
    assert invoke("validate", "nowhere.yaml").exit_code == 2
    assert invoke("--registry", "bad.yaml", "validate").exit_code == 2


@pytest.mark.parametrize("command", ["list", "show dtd", "run --backbone random_resnet18 --task digits_knn --dry-run"])
def test_a_broken_registry_stops_every_command_with_its_place(command: str):
    Path("registry.yaml").write_text(BROKEN)
    result = invoke(*command.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert re.match(r"error: registry\.yaml:2: .+ \(and 1 more: `bench validate` shows all\)\n$", result.stderr)


@pytest.mark.parametrize(
    "arguments", ["--registry my.yaml show net", "show net --registry my.yaml", "show --registry=my.yaml net"]
)
def test_the_global_options_count_wherever_they_stand(arguments: str):
    Path("my.yaml").write_text("backbones: {net: {title: My net, arch: resnet18, source: random, pipeline: rgb}}\n")
    assert "My net" in invoke(*arguments.split()).stdout
    assert invoke("show", "net").exit_code == 2


def test_an_option_behind_two_dashes_is_a_word():
    assert 'nothing is called "--debug"' in invoke("show", "--", "--debug").stderr


# --- run and the rest hand over what was asked for


@pytest.fixture
def handed_over(monkeypatch) -> dict:
    """What `bench run` passes on; the run itself is tested elsewhere."""
    from bench import run

    seen = {}

    def command(known, options, **rest):
        seen.update(asdict(options), **rest)
        return seen.get("code", 0)

    monkeypatch.setattr(run, "command", command)
    return seen


def test_run_hands_over_its_defaults(handed_over):
    assert invoke("run", "--backbone", "a", "--task", "b").exit_code == 0
    assert handed_over == {
        "backbones": ["a"],
        "tasks": ["b"],
        "seeds": [0],
        "device": "auto",
        "dtype": "auto",
        "data": places.data(),
        "results": Path("results"),
        "dry_run": False,
        "as_json": False,
        "force": False,
        "on_bad_image": "stop",
        "download": False,
        "debug": False,
        "batch": None,
        "iterations": None,
        "nproc": 1,
        "overfit_check": True,
    }


def test_run_hands_over_what_is_asked_for(handed_over):
    words = (
        "--backbone a --backbone iring_* --task b --task *_knn --seed 1 --seed 2 --device cpu --dtype float16 --data d "
        "--results r --dry-run --json --force --on-bad-image skip --download --debug "
        "--batch 4 --iterations 100 --nproc 2 --no-overfit-check"
    )
    assert invoke("run", *words.split()).exit_code == 0
    assert handed_over == {
        "backbones": ["a", "iring_*"],
        "tasks": ["b", "*_knn"],
        "seeds": [1, 2],
        "device": "cpu",
        "dtype": "float16",
        "data": Path("d"),
        "results": Path("r"),
        "dry_run": True,
        "as_json": True,
        "force": True,
        "on_bad_image": "skip",
        "download": True,
        "debug": True,
        "batch": 4,
        "iterations": 100,
        "nproc": 2,
        "overfit_check": False,
    }


@pytest.mark.parametrize("code", [0, 1, 2, 3])
def test_run_ends_with_the_exit_code_of_the_run(handed_over, code: int):
    handed_over["code"] = code
    assert invoke("run", "--backbone", "a", "--task", "b").exit_code == code


@pytest.mark.parametrize(
    "arguments",
    [
        "run",
        "run --backbone a",
        "run --task a",
        "run --backbone a --task b --seed -1",
        "run --backbone a --task b --seed x",
        "run --backbone a --task b --on-bad-image hide",
        "run --backbone a --task b --sede 1",
        "run a b",
        "show",
        "register",
        "register a",
        "leaderboard export --format xls",
        "nonesuch",
        "list --jsn",
    ],
)
def test_a_wrong_line_is_a_usage_error_in_one_sentence(handed_over, arguments: str):
    result = invoke(*arguments.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert re.search(r"\nError: .+\n$", result.stderr)
    assert handed_over == {}


def test_the_leaderboard_gets_its_options(monkeypatch):
    from bench import board

    seen = []
    monkeypatch.setattr(board, "show", lambda *arguments: seen.append(arguments))
    monkeypatch.setattr(board, "write", lambda *arguments, wide: seen.append((*arguments, wide)))
    assert invoke("leaderboard", "show", "--results", "r", "--task", "a*").exit_code == 0
    words = "--results r --format md --out o.md --task a --task b --wide"
    assert invoke("leaderboard", "export", *words.split()).exit_code == 0
    assert invoke("leaderboard", "export").exit_code == 0
    assert seen == [
        (Path("r"), ["a*"]),
        (Path("r"), "md", Path("o.md"), ["a", "b"], True),
        (Path("results"), "csv", None, [], False),
    ]


# --- what goes wrong


@pytest.mark.parametrize(
    "error, code, sentence",
    [
        (RingbenchError("it failed"), 1, "error: it failed\n"),
        (UsageError("it is wrong"), 2, "error: it is wrong\n"),
        (Unavailable("it is not there"), 3, "error: it is not there\n"),
        (PermissionError(13, "Permission denied", "/results/x.json"), 1, "error: /results/x.json: Permission denied\n"),
        (
            KeyboardInterrupt(),
            130,
            "interrupted; what was finished is kept: give the same command again (bench pretrain: with --resume) "
            "and it goes on from there\n",
        ),
    ],
)
@pytest.mark.parametrize("debug", [False, True])
def test_what_stops_a_command_is_one_sentence_on_stderr_and_a_traceback_with_debug(monkeypatch, error, code, sentence, debug):
    def stop(extra):
        raise error

    monkeypatch.setattr(registry, "load", stop)
    result = invoke("list", *["--debug"] * debug)
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.endswith(sentence)
    assert ("Traceback" in result.stderr) == debug


@pytest.mark.parametrize("debug", [False, True])
def test_a_fault_of_ours_is_one_line_and_a_traceback_with_debug(monkeypatch, capsys, debug):
    def fail(extra):
        raise ZeroDivisionError("one\ntwo")

    monkeypatch.setattr(registry, "load", fail)
    monkeypatch.setattr(sys, "argv", ["bench", "list", *["--debug"] * debug])
    with pytest.raises(ZeroDivisionError if debug else SystemExit) as caught:
        cli.main()
    if not debug:
        assert caught.value.code == 1
        told = "error: ZeroDivisionError: one (--debug shows where)\n"
        assert capsys.readouterr() == ("", told)


@pytest.mark.parametrize("command", ["list", "list --json", "show dtd", "validate", "-h"])
def test_a_reader_that_leaves_early_gets_no_traceback(command: str):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""}  # what is buffered is written at the very end
    arguments = [sys.executable, "-m", "bench.cli", *command.split()]
    with subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""


def spawned(command: str, redirected: str = "", **variables: str) -> subprocess.CompletedProcess:
    """`bench COMMAND` in a shell, its streams as `redirected` says."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""} | variables
    line = f"{sys.executable} -m bench.cli {command} {redirected}"
    return subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("redirected", [">&-", ">&- 2>&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("command", "code"), [("list", 0), ("show dtd", 0), ("list --json", 0), ("show nothing", 2)])
def test_closed_streams_change_neither_the_exit_code_nor_bring_a_traceback(command: str, code: int, redirected: str):
    done = spawned(command, redirected)
    assert done.returncode == code
    assert "Traceback" not in done.stdout + done.stderr and "xception" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("command", ["list", "show dtd", "list --json", "validate", "leaderboard export"])
def test_a_full_disk_behind_standard_output_is_one_sentence(command: str):
    write(Path("results"), record())
    done = spawned(command, ">/dev/full")
    assert (done.returncode, done.stderr) == (1, "error: standard output: No space left on device\n")


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
@pytest.mark.parametrize("command", ["leaderboard show", "leaderboard export --format md", "show caf\u00e9", "list"])
def test_whatever_encodes_the_output_it_is_printed(command: str, encoding: str):
    write(Path("results"), record())
    done = spawned(command, PYTHONIOENCODING=encoding)
    assert "Error" not in done.stderr and "Traceback" not in done.stderr
    if command.startswith("leaderboard"):
        assert ("80.00 \u00b12.00" if encoding == "utf-8" else "80.00 ~2.00") in done.stdout


def test_a_checkpoint_whose_name_is_no_text_is_refused_by_the_registry_in_a_printable_sentence(tmp_path: Path):
    try:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.pth")).write_bytes(b"weights")
    except OSError:
        pytest.skip("this file system takes no such names")
    done = spawned("register net", "caf?.pth")
    assert done.returncode == 2
    assert done.stderr == "error: the name of caf\\udce9.pth is not text, and a registry is; rename the file\n"


@pytest.mark.parametrize("seed", ["-1", "9223372036854775808", "99999999999999999999", "1.5"])
def test_a_seed_that_no_generator_takes_is_a_usage_error(seed: str):
    done = invoke("run", "--backbone", "random_resnet18", "--task", "digits_knn", "--seed", seed)
    assert done.exit_code == 2 and "--seed" in done.stderr
    Path("registry.yaml").write_text(
        f"backbones: {{net: {{title: t, arch: resnet18, source: random, pipeline: rgb, seed: {seed}}}}}\n"
    )
    told = invoke("validate").stdout
    assert '"seed" of backbone "net"' in told and "Traceback" not in told


@pytest.mark.parametrize("name", ["BENCH_HOME", "BENCH_DATA"])
def test_a_place_that_is_a_file_is_a_usage_error_that_names_it(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(name, str(tmp_path / "file"))
    done = invoke("run", "--backbone", "random_resnet18", "--task", "digits_knn", "--dry-run")
    assert (done.exit_code, done.stderr) == (2, f"error: {name} is {tmp_path / 'file'}, a file; let it name a folder\n")


@pytest.mark.parametrize("option", ["--results", "--data"])
def test_a_file_in_the_place_of_a_folder_is_told_before_anything_is_measured(option: str, tmp_path: Path):
    (tmp_path / "file").write_text("")
    done = invoke("run", "--backbone", "random_resnet18", "--task", "digits_knn", option, "file")
    assert done.exit_code == 2 and option in done.stderr and "is a file" in done.stderr


def test_the_leaderboard_cannot_take_the_place_of_a_folder(tmp_path: Path):
    write(Path("results"), record())
    (tmp_path / "there").mkdir()
    done = invoke("leaderboard", "export", "--out", "there")
    assert (done.exit_code, done.stderr) == (1, "error: there: Is a directory\n")


def test_the_leaderboard_knows_tasks_by_their_aliases_too():
    Path("registry.yaml").write_text("tasks: {mine_knn: {imageset: digits, protocol: knn@1, aliases: [other_name]}}\n")
    write(Path("results"), record(task="mine_knn"))
    write(Path("results"), record(task="gone_knn"))
    for pattern, tasks in {"other_name": {"mine_knn"}, "other_*": {"mine_knn"}, "gone_knn": {"gone_knn"}}.items():
        done = invoke("leaderboard", "export", "--format", "json", "--task", pattern)
        assert {row["task"] for row in json.loads(done.stdout)} == tasks
    assert "other_nam" in invoke("leaderboard", "show", "--task", "other_nam").stderr


@pytest.mark.parametrize("command", ["list", "list tasks --json", "show dtd", "show irings_imagenet", "validate", "-h"])
def test_looking_around_loads_neither_torch_nor_numpy(command: str):
    code = (
        "import sys\nfrom bench.cli import app\n"
        f"try:\n    app({command.split()})\nexcept SystemExit as stop:\n    assert not stop.code\n"
        "print(sorted({'torch', 'numpy', 'torchvision', 'sklearn', 'PIL', 'scipy'} & set(sys.modules)), file=sys.stderr)"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert result.stderr == "[]\n"


def test_a_missing_checkpoint_is_told_at_once_without_network_or_torch_and_with_its_place(isolated_home: Path):
    code = (
        "import socket, sys\nfrom bench.cli import app\n"
        "def no_network(*_): raise AssertionError('the network was asked')\n"
        "socket.socket.connect = socket.getaddrinfo = no_network\n"
        "try:\n    app('run --backbone torchvision_* --task digits_knn'.split())\n"
        "except SystemExit as stop:\n    assert 'torch' not in sys.modules\n    raise\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    told = result.stdout + result.stderr
    assert result.returncode == 3, told
    for name in ("resnet18-f37072fd.pth", "resnet50-11ad3fa6.pth"):
        assert f"{name} is not in {isolated_home / 'checkpoints'}; put it there" in told


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is Linux's")
def test_a_program_begins_anew_with_huge_pages_once_and_keeps_its_arguments(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        "import os, sys\nfrom bench import memory\nprint('begun')\nsys.stdout.flush()\nmemory.prefer_huge_pages()\n"
        "print(os.environ['GLIBC_TUNABLES'], sys.argv[1:])\n"
    )

    def lines(**environment):
        inherited = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"} | {"PYTHONPATH": str(ROOT)}
        command = [sys.executable, str(script), "--set", "a b"]
        return subprocess.run(
            command, env=inherited | environment, capture_output=True, text=True, check=True
        ).stdout.splitlines()

    assert lines() == ["begun", "begun", "glibc.malloc.hugetlb=1 ['--set', 'a b']"]
    assert lines(GLIBC_TUNABLES="glibc.malloc.check=0") == ["begun", "glibc.malloc.check=0 ['--set', 'a b']"]


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
        pytest.param(None, id="torch on a CPU"),
    ],
)
def test_memory_that_does_not_suffice_is_told_with_what_to_do(error):
    if error is None:
        with pytest.raises(RuntimeError) as caught:
            torch.empty(2**50)
        error = caught.value
    assert sentence(error).startswith("out of memory: a smaller batch")
