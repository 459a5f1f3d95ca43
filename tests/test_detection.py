"""A detector from its encoder to its record: each head trained for a moment, runs kept apart, and what must stop one."""

import json
import math
import os
import resource
import signal
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from bench import cli, registry, results, setup_detection
from bench import plan as planning
from bench.plan import Options
from ringbench.stopping import Preempted

needs_detectron2 = pytest.mark.skipif(
    setup_detection.missing() is not None, reason="Detectron2 is not installed: bench setup detection"
)
SMALL = [
    *("INPUT.MIN_SIZE_TRAIN", (96,), "INPUT.MIN_SIZE_TEST", 96, "TEST.PRECISE_BN.NUM_ITER", 1),
    *("MODEL.RPN.POST_NMS_TOPK_TRAIN", 20, "MODEL.RPN.POST_NMS_TOPK_TEST", 8, "MODEL.RPN.BATCH_SIZE_PER_IMAGE", 16),
    *("MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE", 8, "TEST.DETECTIONS_PER_IMAGE", 4),
    *("MODEL.ROI_HEADS.SCORE_THRESH_TEST", 0.0, "MODEL.ROI_KEYPOINT_HEAD.CONV_DIMS", (16,), "MODEL.FPN.OUT_CHANNELS", 16),
]


def bench(*arguments: object):
    return CliRunner().invoke(cli.app, list(map(str, arguments)))


@pytest.fixture
def few_scenes(monkeypatch):
    from imagesets.providers import shapes

    monkeypatch.setattr(shapes, "SCENES", {"train": 4, "test": 3})


@pytest.fixture
def small(monkeypatch):
    """Every configuration with small images and few regions."""
    from transfer.detection import config

    read = config.read

    def smaller(name: str):
        cfg = read(name)
        cfg.merge_from_list(SMALL)
        return cfg

    monkeypatch.setattr(config, "read", smaller)


@pytest.fixture
def scenes(few_scenes, tmp_path):
    from imagesets import annotated
    from imagesets.spec import ImagesetSpec

    return annotated.load(ImagesetSpec(name="shapes", title="s", provider="shapes"), tmp_path)


def measured(images, folder, protocol: str, arch: str = "resnet18", stem: str = "imagenet", **options) -> dict:
    from backbones import loading
    from backbones.spec import BackboneSpec
    from imagesets.pipeline import parse
    from transfer.detection.measure import measure

    text = "rgb|scale01" if stem == "lab" else "rgb|scale01|normalize(half)"
    backbone = loading.load(BackboneSpec(name="r", title="r", arch=arch, stem=stem, source="random", pipeline=text))
    pipeline = parse(text)
    backbone = backbone.for_inputs(scale01=pipeline.scale01, mean=pipeline.mean, std=pipeline.std)
    spec = planning.shortened(registry.load().protocols[protocol], options.pop("iterations", 2))
    settled = {"seed": 0, "device": torch.device("cpu"), "dtype": torch.float32, "batch": 1, "folder": folder} | options
    return measure(spec, images, backbone, pipeline, **settled)


def in_voc_style(images):
    splits = {
        name: replace(split, annotations=[annotation | {"difficult": 0} for annotation in split.annotations])
        for name, split in images.splits.items()
    }
    return replace(images, splits=splits, style="voc")


# --- each head, for a moment


@needs_detectron2
@pytest.mark.parametrize(
    ("protocol", "kinds"),
    [
        ("voc-c4-24k@1", {"box"}),
        ("coco-c4-1x@1", {"box", "mask"}),
        ("coco-keypoint-fpn-1x@1", {"box", "keypoint"}),
    ],
)
def test_each_head_trains_and_is_measured(scenes, small, tmp_path, protocol, kinds):
    images = in_voc_style(scenes) if protocol.startswith("voc") else scenes
    outcome = measured(images, tmp_path / "run", protocol)
    assert {name.split("_")[0] for name in outcome["metrics"]} == kinds
    for score in outcome["metrics"].values():
        assert 0 <= score["ci_low"] <= score["value"] <= score["ci_high"] <= 100 or math.isclose(score["value"], 0)
        assert score["n"] == 3
    assert set(outcome["per_class"]) == kinds
    assert ("box_AP50_voc07" in outcome["metrics"]) == protocol.startswith("voc")
    predictions = json.loads((tmp_path / "run" / "predictions.json").read_text())
    assert {found["image_id"] for found in predictions} <= {image["id"] for image in images.splits["test"].images}
    assert all(found["category_id"] in images.category_ids for found in predictions)
    assert ("segmentation" in predictions[0], "keypoints" in predictions[0]) == ("mask" in kinds, "keypoint" in kinds)
    assert any("calibrat" in note or "batch norm statistics" in note for note in outcome["notes"])
    assert max(outcome["run"]["parity"].values()) < 1e-4
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "Total training time" in log
    assert list((tmp_path / "run").glob("events.out.tfevents.*")), "TensorBoard's curves"


@needs_detectron2
def test_masks_are_trained_on_the_objects_that_have_one(scenes, small, tmp_path):
    train, seen, annotations = scenes.splits["train"], set(), []
    for annotation in train.annotations:  # the first object of each image keeps its mask
        kept = annotation["image_id"] not in seen
        annotations.append({key: value for key, value in annotation.items() if kept or key != "segmentation"})
        seen.add(annotation["image_id"])
    mixed = replace(scenes, splits=scenes.splits | {"train": replace(train, annotations=annotations)})
    outcome = measured(mixed, tmp_path / "run", "coco-c4-1x@1", iterations=1)
    assert f"{len(annotations) - len(seen)} training objects have no mask: trained without them" in outcome["notes"]
    assert "mask_AP" in outcome["metrics"] and len(annotations) > len(seen)


@needs_detectron2
def test_both_streams_of_cmc_go_into_a_detector(scenes, small, tmp_path):
    outcome = measured(scenes, tmp_path / "run", "coco-c4-1x@1", stem="lab", iterations=1)
    assert outcome["metrics"]["box_AP"]["n"] == 3


# --- one folder, one run


@needs_detectron2
def test_the_same_seed_finds_the_same_boxes_again_and_a_finished_run_is_not_trained_again(scenes, small, tmp_path, monkeypatch):
    first, second = (measured(scenes, tmp_path / name, "coco-c4-1x@1", iterations=1) for name in ("first", "second"))
    assert first["metrics"] == second["metrics"]
    predictions = [(tmp_path / name / "predictions.json").read_text() for name in ("first", "second")]
    assert predictions[0] == predictions[1]

    from ringbench.errors import RingbenchError
    from transfer.detection import measure

    monkeypatch.setattr(measure, "launch", lambda *arguments, **options: pytest.fail("it trained again"))
    assert measured(scenes, tmp_path / "first", "coco-c4-1x@1", iterations=1) == first

    (tmp_path / "first" / "predictions.json").write_text("[]")
    with pytest.raises(RingbenchError, match=r"predictions\.json is not what this run wrote"):
        measured(scenes, tmp_path / "first", "coco-c4-1x@1", iterations=1)


@needs_detectron2
def test_the_folder_of_another_run_is_refused_and_says_what_is_other(scenes, small, tmp_path, monkeypatch):
    from ringbench.errors import RingbenchError
    from transfer.detection import measure

    class Enough(Exception):
        pass

    def stop(*arguments, **options):
        raise Enough

    monkeypatch.setattr(measure, "launch", stop)
    with pytest.raises(Enough):
        measured(scenes, tmp_path / "run", "coco-c4-1x@1")
    smaller = replace(scenes, splits=scenes.splits | {"test": scenes.splits["train"]})
    for other, named in (
        ({"arch": "resnet34"}, "encoder"),
        ({"seed": 1}, "configuration"),
        ({"batch": 2}, "configuration"),
        ({"images": smaller}, "images"),
    ):
        images = other.pop("images", scenes)
        with pytest.raises(RingbenchError, match=f"holds a run with another.*{named}.*--force"):
            measured(images, tmp_path / "run", "coco-c4-1x@1", **other)
    with pytest.raises(Enough):
        measured(scenes, tmp_path / "run", "coco-c4-1x@1", seed=1, again=True)


@needs_detectron2
def test_a_random_encoder_is_the_same_with_another_number_of_threads(scenes, small, tmp_path, monkeypatch):
    from transfer.detection import checks, measure

    class Enough(Exception):
        pass

    def stop(*arguments, **options):
        raise Enough

    def otherwise(*arguments):
        trunk = calibrated(*arguments)
        trunk.bn1.running_var *= 1 + 1e-6
        return trunk

    calibrated = checks.calibrated
    monkeypatch.setattr(measure, "launch", stop)
    for calibrate in (calibrated, otherwise):
        monkeypatch.setattr(checks, "calibrated", calibrate)
        with pytest.raises(Enough):
            measured(scenes, tmp_path / "run", "coco-c4-1x@1")


@needs_detectron2
def test_a_run_that_was_cut_short_goes_on_from_its_checkpoint(scenes, small, tmp_path, monkeypatch):
    from transfer.detection import config, job

    read = config.read

    def saving(name: str):
        cfg = read(name)
        cfg.SOLVER.CHECKPOINT_PERIOD = cfg.SOLVER.IMS_PER_BATCH = 1
        return cfg

    def killed(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(config, "read", saving)
    with monkeypatch.context() as patch:
        patch.setattr(job, "predict", killed)
        with pytest.raises(KeyboardInterrupt):
            measured(scenes, tmp_path / "run", "coco-c4-1x@1", iterations=3)
    (tmp_path / "run" / "last_checkpoint").write_text("model_0000001.pth")
    outcome = measured(scenes, tmp_path / "run", "coco-c4-1x@1", iterations=3)
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "Starting training from iteration 2" in log
    assert "training was cut short and gone on with at iteration 2" in outcome["notes"]


def altered(path, change) -> None:
    state = torch.load(path, weights_only=True)
    change(state["model"])
    torch.save(state, path)


@needs_detectron2
def test_a_checkpoint_with_other_tensors_or_another_encoder_is_not_gone_on_with(scenes, small, tmp_path, monkeypatch):
    from ringbench.errors import RingbenchError

    with monkeypatch.context() as patch:
        at_iteration(2, lambda: os.kill(os.getpid(), signal.SIGTERM), patch)
        with pytest.raises(Preempted):
            measured(scenes, tmp_path / "run", "coco-c4-1x@1", iterations=5)
    path = tmp_path / "run" / "model_0000001.pth"
    altered(path, lambda model: model["backbone.body.network.conv1.weight"].add_(1))
    with pytest.raises(RingbenchError, match=r"what is frozen in .* is not what the run began with"):
        measured(scenes, tmp_path / "run", "coco-c4-1x@1", iterations=5)
    altered(path, lambda model: model.pop("roi_heads.box_predictor.cls_score.weight"))
    with pytest.raises(RingbenchError, match=r"cannot be gone on from \(it lacks, .*cls_score.weight"):
        measured(scenes, tmp_path / "run", "coco-c4-1x@1", iterations=5)


@needs_detectron2
def test_checkpoints_of_earlier_processes_do_not_pile_up(scenes, small, tmp_path, monkeypatch):
    for number in (2, 4, 6):
        with monkeypatch.context() as patch:
            at_iteration(number, lambda: os.kill(os.getpid(), signal.SIGTERM), patch)
            with pytest.raises(Preempted):
                measured(scenes, tmp_path / "run", "coco-c4-1x@1", iterations=40)
    left = sorted(path.name for path in (tmp_path / "run").glob("model_*.pth"))
    assert left == ["model_0000003.pth", "model_0000005.pth"], "the last, and the one it went on from"


@needs_detectron2
def test_sigterm_while_it_predicts_loses_no_training(scenes, small, tmp_path, monkeypatch):
    from transfer.detection import train

    instances_to_coco_json = train.instances_to_coco_json

    def asked_back(*arguments):
        os.kill(os.getpid(), signal.SIGTERM)
        return instances_to_coco_json(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(train, "instances_to_coco_json", asked_back)
        with pytest.raises(Preempted, match=r"SIGTERM after training; .* goes on with predicting"):
            measured(scenes, tmp_path / "run", "coco-c4-1x@1")
    assert measured(scenes, tmp_path / "run", "coco-c4-1x@1")["run"]["begun"] == 2, "nothing was left to train"


def at_iteration(number: int, act, monkeypatch) -> None:
    """Call `act` after so many iterations of a training."""
    from transfer.detection import job

    @contextmanager
    def bar(label):
        yield lambda done, total: act() if done == number else None

    monkeypatch.setattr(job.progress, "bar", bar)


@needs_detectron2
def test_sigterm_leaves_a_checkpoint_and_the_same_command_goes_on(scenes, small, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        at_iteration(2, lambda: os.kill(os.getpid(), signal.SIGTERM), patch)
        with pytest.raises(Preempted, match=r"SIGTERM after iteration 2; the same command .* goes on"):
            measured(scenes, tmp_path / "run", "coco-c4-1x@1", iterations=5)
    assert (tmp_path / "run" / "last_checkpoint").read_text() == "model_0000001.pth"
    outcome = measured(scenes, tmp_path / "run", "coco-c4-1x@1", iterations=5)
    assert "training was cut short and gone on with at iteration 2" in outcome["notes"]


@needs_detectron2
@pytest.mark.parametrize(("iteration", "kept"), [(0, []), (2, ["model_0000001.pth"])])
def test_sigterm_that_kills_the_workers_of_the_loader_too_leaves_a_checkpoint(
    scenes, small, tmp_path, monkeypatch, iteration, kept
):
    from detectron2.engine import SimpleTrainer

    run_step = SimpleTrainer.run_step

    def without_workers(self):
        if self.iter == iteration:
            os.kill(os.getpid(), signal.SIGTERM)
            raise ConnectionResetError(104, "Connection reset by peer")
        run_step(self)

    monkeypatch.setattr(SimpleTrainer, "run_step", without_workers)
    with pytest.raises(Preempted, match=rf"SIGTERM after iteration {iteration}; the same command .* goes on"):
        measured(scenes, tmp_path / "run", "coco-c4-1x@1", iterations=20)
    assert [path.name for path in (tmp_path / "run").glob("*.pth")] == kept


@needs_detectron2
def test_bench_run_ends_with_75_when_the_machine_is_asked_for_back(few_scenes, small, tmp_path, monkeypatch):
    at_iteration(1, lambda: os.kill(os.getpid(), signal.SIGTERM), monkeypatch)
    backbones = ("--backbone", "random_resnet18", "--backbone", "random_resnet50")
    stopped = bench("run", *backbones, "--task", "shapes_det", "--batch", 1, "--iterations", 5, "--results", tmp_path)
    assert stopped.exit_code == 75
    assert "stopped by SIGTERM after iteration 1" in stopped.output
    assert not list(tmp_path.rglob("*.failed.json")), "no failure"
    assert not (tmp_path / "random_resnet50").exists(), "nothing else is begun"


@needs_detectron2
def test_a_disk_that_is_full_is_told_and_what_was_saved_before_stays(scenes, small, tmp_path, monkeypatch):
    from ringbench.errors import RingbenchError
    from transfer.detection import config

    read = config.read

    def saving(name: str):
        cfg = read(name)
        cfg.SOLVER.IMS_PER_BATCH = 1
        return cfg

    def nothing_large():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    monkeypatch.setattr(config, "read", saving)
    try:
        with monkeypatch.context() as patch:
            at_iteration(3, nothing_large, patch)
            with pytest.raises(RingbenchError, match=r"model_0000003\.pth cannot be written .*is the disk full"):
                measured(scenes, tmp_path / "run", "coco-c4-1x@1", iterations=8)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in (tmp_path / "run").glob("*.pth")] == ["model_0000001.pth"]
    measured(scenes, tmp_path / "run", "coco-c4-1x@1", iterations=8)


@needs_detectron2
@pytest.mark.parametrize(
    ("file", "bytes_", "words"),
    [
        ("run.json", b'{"encoder": ', r"run\.json is broken .*--force"),
        ("run.json", b"[]", r"run\.json is broken .*--force"),
        ("finished.json", b"\xff\xfe", r"finished\.json is broken .*--force"),
        ("finished.json", b"{}", r"predictions\.json is not what this run wrote"),
    ],
)
def test_what_a_run_left_behind_and_is_broken_is_named(scenes, small, tmp_path, file, bytes_, words):
    from ringbench.errors import RingbenchError

    measured(scenes, tmp_path / "run", "coco-c4-1x@1", iterations=1)
    (tmp_path / "run" / file).write_bytes(bytes_)
    with pytest.raises(RingbenchError, match=words):
        measured(scenes, tmp_path / "run", "coco-c4-1x@1", iterations=1)


@needs_detectron2
@pytest.mark.parametrize(("file", "bytes_"), [("last_checkpoint", b""), ("last_checkpoint", b"\xff"), ("model_final.pth", b"PK")])
def test_a_checkpoint_that_cannot_be_read_is_named(scenes, small, tmp_path, file, bytes_):
    from ringbench.errors import RingbenchError

    measured(scenes, tmp_path / "run", "coco-c4-1x@1", iterations=1)
    (tmp_path / "run" / "finished.json").unlink()
    (tmp_path / "run" / file).write_bytes(bytes_)
    with pytest.raises(RingbenchError, match=r"/run cannot be gone on from .*--force"):
        measured(scenes, tmp_path / "run", "coco-c4-1x@1", iterations=1)
    (tmp_path / "run" / "run.json").unlink()
    with pytest.raises(RingbenchError, match=r"holds checkpoints, but no run\.json .*--force"):
        measured(scenes, tmp_path / "run", "coco-c4-1x@1", iterations=1)


# --- what stops a run


@needs_detectron2
def test_a_loss_that_is_no_number_stops_the_run_names_the_images_and_leaves_no_result(scenes, small, tmp_path, monkeypatch):
    from ringbench.errors import RingbenchError
    from transfer.detection import config

    read = config.read

    def explosive(name: str):
        cfg = read(name)
        cfg.SOLVER.BASE_LR, cfg.SOLVER.WARMUP_ITERS, cfg.SOLVER.STEPS = 1e12, 0, ()
        return cfg

    monkeypatch.setattr(config, "read", explosive)
    with pytest.raises(RingbenchError, match=r"training diverged at iteration \d+ on the images \d+"):
        measured(scenes, tmp_path / "run", "coco-c4-1x@1", iterations=20)
    assert not (tmp_path / "run" / "finished.json").exists()


@needs_detectron2
def test_a_detector_that_cannot_learn_ten_images_by_heart_does_not_start_a_long_run(scenes, small, tmp_path, monkeypatch):
    from ringbench.errors import RingbenchError
    from transfer.detection import job

    monkeypatch.setattr(job, "BRIEF", 1)  # too short to learn anything
    with pytest.raises(RingbenchError, match=r"finds nothing on the same images \(AP50 0\).*--no-overfit-check"):
        measured(scenes, tmp_path / "run", "coco-c4-1x@1", iterations=job.LONG)
    assert not (tmp_path / "run" / "last_checkpoint").exists()


@needs_detectron2
def test_the_check_of_keypoints_takes_images_that_have_some(scenes, small, tmp_path, monkeypatch):
    """Detectron2 passes over images without, and fails where none is left."""
    from transfer.detection import job

    train = scenes.splits["train"]
    last = train.images[-1]["id"]
    bare = [
        each if each["image_id"] == last else each | {"keypoints": [0] * len(each["keypoints"]), "num_keypoints": 0}
        for each in train.annotations
    ]
    scenes = replace(scenes, splits=scenes.splits | {"train": replace(train, annotations=bare)})

    class Enough(Exception):
        pass

    def evaluated(few, *arguments, **options):
        assert [image["id"] for image in few.images] == [last]
        raise Enough

    monkeypatch.setattr(job, "BRIEF", 1)
    monkeypatch.setattr(job, "evaluate", evaluated)
    with pytest.raises(Enough):
        measured(scenes, tmp_path / "run", "coco-keypoint-fpn-1x@1", iterations=job.LONG)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@needs_detectron2
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("protocol", ["coco-c4-1x@1", "coco-keypoint-fpn-1x@1"])
def test_a_gpu_trains_with_processes_that_load_images_and_goes_on(scenes, small, tmp_path, monkeypatch, protocol, dtype):
    where = {"device": torch.device("cuda"), "dtype": dtype, "iterations": 6, "batch": 2}
    with monkeypatch.context() as patch:
        at_iteration(2, lambda: os.kill(os.getpid(), signal.SIGTERM), patch)
        with pytest.raises(Preempted):
            measured(scenes, tmp_path / "run", protocol, **where)
    outcome = measured(scenes, tmp_path / "run", protocol, **where)
    assert outcome["run"]["begun"] == 2
    assert max(outcome["run"]["parity"].values()) < 1e-4


@needs_detectron2
def test_the_check_on_ten_images_lets_pass_what_learns_and_leaves_short_runs_alone(scenes, small, tmp_path, monkeypatch):
    from transfer.detection import job

    class Enough(Exception):
        pass

    def found(few, categories, predictions, kind, **options):
        assert kind == "bbox"
        assert {annotation["image_id"] for annotation in few.annotations} == {image["id"] for image in few.images}
        raise Enough

    monkeypatch.setattr(job, "BRIEF", 1)
    monkeypatch.setattr(job, "evaluate", found)
    with pytest.raises(Enough):
        measured(scenes, tmp_path / "long", "coco-c4-1x@1", iterations=job.LONG)
    measured(scenes, tmp_path / "short", "coco-c4-1x@1", iterations=1)


@needs_detectron2
def test_half_precision_is_asked_for_on_cuda_alone_and_processes_need_gpus(scenes, small, tmp_path):
    from ringbench.errors import UsageError

    with pytest.raises(UsageError, match="on CUDA only"):
        measured(scenes, tmp_path / "run", "coco-c4-1x@1", dtype=torch.bfloat16)
    with pytest.raises(UsageError, match="need as many GPUs"):
        measured(scenes, tmp_path / "run", "coco-c4-1x@1", nproc=2)


# --- through `bench run`


@needs_detectron2
def test_bench_run_trains_once_for_boxes_and_masks_and_writes_whole_records(few_scenes, small, tmp_path):
    tasks = ("--task", "shapes_det", "--task", "shapes_seg")
    told = bench("run", "--backbone", "random_resnet18", *tasks, "--iterations", 2, "--batch", 1, "--device", "cpu", "--debug")
    assert told.exit_code == 0, told.output
    records = results.read_all(tmp_path / "results")
    assert {(record["task"], record["metric"]) for record in records} == {("shapes_det", "box_AP50"), ("shapes_seg", "mask_AP50")}
    one, two = records
    assert one["protocol"] == "shapes-c4-trunk+2it@1"
    assert one["metrics"] == two["metrics"]
    assert one["run"] == two["run"], "one training"
    assert one["level"] == "stages"
    assert one["selected"] | {"batch": 1, "learning_rate": 0.005, "iterations": 2, "freeze": "trunk"} == one["selected"]
    assert one["pipeline"].startswith("rgb(pil)|scale01|normalize(0.")
    assert {"detectron2", "pycocotools", "torch"} <= set(one["versions"])
    again = bench("run", "--backbone", "random_resnet18", *tasks, "--iterations", 2, "--batch", 1, "--device", "cpu")
    assert again.output.count("done") == 3
    board = bench("leaderboard", "export")
    assert "box_AP50" in board.output
    assert "shapes-c4-trunk+2it@1" in board.output


@needs_detectron2
def test_test_images_that_cannot_be_used_stop_a_run_before_training_unless_they_are_to_be_skipped(few_scenes, small, tmp_path):
    from imagesets.providers import shapes

    shapes.write(tmp_path / "data" / "mine")
    parts = "train: [{annotations: train.json, images: train}], test: [{annotations: test.json, images: test}]"
    (tmp_path / "registry.yaml").write_text(
        f"imagesets:\n  mine: {{title: Mine, provider: coco, {parts}}}\n"
        "tasks:\n  mine_det: {imageset: mine, protocol: shapes-c4-trunk@1, metric: box_AP50}\n"
    )
    arguments = ("run", "--backbone", "random_resnet18", "--task", "mine_det", "--iterations", 1, "--batch", 1)

    def record() -> dict:
        (found,) = [each for each in results.read_all(tmp_path / "results") if each["status"] != "failed"]
        return found

    (tmp_path / "data/mine/train/00000.bmp").write_bytes(b"no image")
    told = bench(*arguments)
    assert told.exit_code == 0, told.output
    assert record()["n_skipped"] == {"train": 1, "test": 0} and "train: 1 x image broken or truncated" in told.output
    assert bench(*arguments).exit_code == 0, "it stands, although training did without an image"

    (tmp_path / "data/mine/test/00001.bmp").unlink()
    for options in ((), ("--dry-run",)):
        told = bench(*arguments, "--force", *options)
        assert "1 test images of image set 'mine' cannot be used, such as" in told.output
        assert "test/00001.bmp (image missing)" in told.output and "--on-bad-image skip" in told.output
        assert told.exit_code == (0 if options else 1)
    assert record()["n_skipped"] == {"train": 1, "test": 0}, "nothing was trained"

    skipping = bench(*arguments, "--force", "--on-bad-image", "skip")
    assert skipping.exit_code == 0, skipping.output
    assert record()["n_skipped"] == {"train": 1, "test": 1}
    assert record()["status"] == "suspect" and "1 test images could not be read" in record()["reasons"]
    assert "some of them skipped" in bench(*arguments).output
    assert bench(*arguments, "--on-bad-image", "skip").exit_code == 0


def test_without_detectron2_its_tasks_are_unavailable_and_say_what_to_run(monkeypatch, tmp_path):
    monkeypatch.setattr(setup_detection, "find_spec", lambda name: None)
    told = bench("run", "--backbone", "random_resnet18", "--task", "shapes_det")
    assert told.exit_code == 3
    assert "bench setup detection" in told.output
    assert "coco-c4-1x@1" in bench("show", "coco_det").output
    assert "bench setup detection" in bench("show", "shapes_det").output
    assert "bench setup detection" in bench("doctor").output


def test_the_plan_gives_a_shortened_detector_a_protocol_of_its_own_and_leaves_probes_alone(tmp_path):
    known = registry.load()
    options = Options(tmp_path, tmp_path, iterations=100)
    plan = planning.make(known, ["random_resnet18"], ["shapes_det", "digits_knn"], [0], options)
    assert {cell.protocol.name for cell in plan.cells} == {"shapes-c4-trunk+100it@1", "knn@1"}
    detector = next(cell for cell in plan.cells if cell.task.name == "shapes_det")
    assert detector.protocol.settings["iterations"] == 100
    assert detector.path.name == "shapes-c4-trunk+100it@1.seed0.json"


def test_boxes_and_masks_of_one_image_set_are_one_group_and_labels_another(tmp_path):
    plan = planning.make(
        registry.load(), ["random_resnet18"], ["shapes_det", "shapes_seg", "digits_knn"], [0], Options(tmp_path, tmp_path)
    )
    assert [len(group) for group in plan.groups()] == [1, 2] or [len(group) for group in plan.groups()] == [2, 1]


@pytest.mark.parametrize(
    ("protocol", "sentence"),
    [
        ("probe: detection, level: pooled, settings: {config: voc_c4_24k}", "a detector, and only it, sees stages"),
        ("probe: knn, level: stages", "a detector, and only it, sees stages"),
        ("probe: detection, level: stages, settings: {config: voc_c4_24}", "did you mean"),
        ("probe: detection, level: stages, settings: {config: voc_c4_24k, freeze: all}", "freeze"),
    ],
)
def test_a_protocol_that_means_no_detector_is_a_problem_of_the_registry(tmp_path, protocol, sentence):
    (tmp_path / "registry.yaml").write_text(f"protocols:\n  mine@1: {{title: x, source: x, {protocol}}}\n")
    told = bench("validate")
    assert told.exit_code == 2
    assert "registry.yaml:2:" in told.output
    assert sentence in told.output


def test_a_task_told_by_a_number_that_was_not_measured_is_a_failure_with_the_known_ones(tmp_path):
    from bench.cells import finish
    from ringbench.errors import RingbenchError

    known = registry.load()
    task = known.tasks["shapes_det"].model_copy(update={"metric": "box_AP5"})
    specs = known.backbones["random_resnet18"], task, known.protocols["shapes-c4-trunk@1"], known.imagesets["shapes"]
    nothing = {"inputs": {}, "certificate": {}, "images": None, "pipeline": "", "skipped": {}, "notes": []}
    with pytest.raises(RingbenchError, match="told by box_AP5, which was not measured; there are box_AP50"):
        finish(planning.Cell(*specs, 0, tmp_path), {"metrics": {"box_AP50": {}}}, Options(tmp_path, tmp_path), **nothing)


@needs_detectron2
def test_a_detector_is_not_trained_for_a_number_it_cannot_give(few_scenes, small, tmp_path, monkeypatch):
    from transfer.detection import measure

    monkeypatch.setattr(measure, "launch", lambda *arguments: pytest.fail("it trained"))
    (tmp_path / "registry.yaml").write_text(
        "tasks:\n  mine: {imageset: shapes, protocol: shapes-c4-trunk@1, metric: keypoint_AP}"
    )
    run = ("run", "--backbone", "random_resnet18", "--task", "mine", "--results", tmp_path / "results")
    told = bench("--registry", tmp_path / "registry.yaml", *run)
    assert told.exit_code == 1
    assert "task mine is told by keypoint_AP, which is not measured; there are box_AP, box_AP50" in told.output


@needs_detectron2
def test_names_of_metrics_are_those_of_the_evaluation():
    from transfer.detection.evaluate import SUMMARY, VOC
    from transfer.detection.predictions import WORDS
    from transfer.spec import PRECISIONS

    measured = {f"{WORDS[kind]}_{name}" for kind, names in SUMMARY.items() for name in names} | {f"box_{name}" for name in VOC}
    assert set(PRECISIONS) == measured


@needs_detectron2
def test_a_run_that_goes_on_draws_other_images_than_it_began_with(tmp_path):
    from transfer.detection.job import _begun

    assert _begun(tmp_path) == 0
    (tmp_path / "last_checkpoint").write_text("model_0004999.pth")
    assert _begun(tmp_path) == 5000
    (tmp_path / "last_checkpoint").write_text("model_final.pth")
    assert _begun(tmp_path) == 0
