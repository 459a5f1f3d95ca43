"""An encoder inside a detector: the same numbers as in torch, frozen as asked, coloured as trained (CASES C5, C9, C13, E3)."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("detectron2", reason="Detectron2 is not installed: bench setup detection")

from detectron2.modeling import build_model

from backbones.trunk import FrozenBackbone, random_trunk, trunk_sha256
from imagesets import annotated
from imagesets.pipeline import parse
from imagesets.spec import ImagesetSpec
from ringbench.errors import RingbenchError, UsageError
from transfer.detection import checks, config, data
from transfer.detection import model as detectors
from transfer.detection.settings import CONFIGS, detector_inputs, settings
from transfer.detection.train import Trainer

PIPELINE = parse("rgb|scale01|normalize(imagenet)")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENCH_HOME", str(tmp_path_factory.mktemp("home")))
        yield annotated.load(ImagesetSpec(name="shapes", title="s", provider="shapes"), tmp_path_factory.mktemp("data"))


def encoder(arch: str, stem: str = "imagenet", pipeline=PIPELINE) -> FrozenBackbone:
    """Random weights whose batch norms are no identity: folding, naming and order of layers all show in the features."""
    trunk = random_trunk(arch, stem, 0)
    generator = torch.Generator().manual_seed(1)
    for module in trunk.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            for tensor, low, high in ((module.weight, 0.5, 1.0), (module.bias, -0.2, 0.2), (module.running_mean, -0.1, 0.1)):
                tensor.data.uniform_(low, high, generator=generator)
    certificate = {"arch": arch, "stem": stem, "source": "test", "trunk_sha256": trunk_sha256(trunk)}
    backbone = FrozenBackbone(trunk, certificate)
    return backbone.for_inputs(scale01=pipeline.scale01, mean=pipeline.mean, std=pipeline.std)


def detector(images, backbone, name: str = "shapes_c4", freeze: str = "encoder", pipeline=PIPELINE, **options):
    cfg = configuration(images, backbone, name, freeze, pipeline, **options)
    model = build_model(cfg)
    detectors.fill(model, backbone.trunk)
    return cfg, model


def configuration(images, backbone, name="shapes_c4", freeze="encoder", pipeline=PIPELINE, batch=None, iterations=None):
    chosen = settings({"config": name, "freeze": freeze} | ({"iterations": iterations} if iterations else {}))
    arch, stem = (backbone.certificate[key] for key in ("arch", "stem"))
    data.register(images)
    return config.bound(chosen, arch, stem, pipeline, images, batch=batch, seed=0, device=CPU, dtype=torch.float32)


@pytest.mark.parametrize("freeze", ["encoder", "trunk", "none"])
@pytest.mark.parametrize(
    ("arch", "name"),
    [("resnet18", "shapes_c4"), ("resnet50", "shapes_c4"), ("resnet18", "shapes_fpn"), ("resnet50x0.5", "shapes_fpn")],
)
def test_every_stage_of_the_detector_is_that_of_the_encoder_in_torch(shapes, arch, name, freeze):
    backbone = encoder(arch)
    _, model = detector(shapes, backbone, name, freeze)
    file = shapes.splits["train"].images[0]["file_name"]
    differences = checks.check_parity(model, backbone, backbone.trunk, PIPELINE, file)
    assert set(differences) == {"res2", "res3", "res4", "res5"}
    assert max(differences.values()) < 1e-4


@pytest.mark.parametrize("stem", ["lab", "cifar", "same"])
def test_encoders_with_another_stem_and_both_streams_of_cmc_are_the_same_in_a_detector(shapes, stem):
    pipeline = parse("rgb|scale01") if stem == "lab" else PIPELINE
    backbone = encoder("resnet18", stem, pipeline)
    _, model = detector(shapes, backbone, pipeline=pipeline)
    file = shapes.splits["train"].images[0]["file_name"]
    assert max(checks.check_parity(model, backbone, backbone.trunk, pipeline, file).values()) < 1e-4


def test_features_are_compared_in_whole_float32(shapes, monkeypatch):
    backbone = encoder("resnet18")
    _, model = detector(shapes, backbone)
    forward, seen = detectors.Frozen.forward, []
    flags = lambda: (torch.backends.cudnn.enabled, torch.backends.cudnn.allow_tf32)  # noqa: E731
    monkeypatch.setattr(detectors.Frozen, "forward", lambda self, *x: (seen.append(flags()), forward(self, *x))[1])
    checks.check_parity(model, backbone, backbone.trunk, PIPELINE, shapes.splits["train"].images[0]["file_name"])
    assert set(seen) == {(True, False)}


@pytest.mark.parametrize("stem", ["imagenet", "lab", "same", "cifar", "cifar_s2"])
def test_regions_and_anchors_are_where_the_maps_are_whatever_the_stem(shapes, stem):
    pipeline = parse("rgb|scale01") if stem == "lab" else PIPELINE
    _, model = detector(shapes, encoder("resnet18", stem, pipeline), pipeline=pipeline)
    stride = model.backbone.output_shape()["res4"].stride
    with torch.no_grad():
        res4 = model.backbone(torch.zeros(1, 3, 96, 96))["res4"]
    (pooler,), anchors = model.roi_heads.pooler.level_poolers, model.proposal_generator.anchor_generator
    assert stride * res4.shape[-1] == 96
    assert (anchors.strides, pooler.spatial_scale) == ([stride], 1 / stride)


def test_a_pyramid_is_refused_on_a_stem_that_shrinks_less(shapes):
    with pytest.raises(UsageError, match="the stem cifar has smaller ones"):
        configuration(shapes, encoder("resnet18", "cifar"), "shapes_fpn")


def test_other_weights_than_the_encoders_stop_before_the_first_step(shapes):
    backbone = encoder("resnet18")
    _, model = detector(shapes, backbone)
    with torch.no_grad():
        detectors.bottom(model).body.network.layer2[0].conv1.weight[0, 0, 0, 0] += 1
    with pytest.raises(RingbenchError, match=r"^res3 of the detector differs"):
        checks.check_parity(model, backbone, backbone.trunk, PIPELINE, shapes.splits["train"].images[0]["file_name"])


def test_an_encoder_of_another_architecture_does_not_fit(shapes):
    _, model = detector(shapes, encoder("resnet18"))
    with pytest.raises(RingbenchError, match="does not fit into the detector"):
        detectors.fill(model, random_trunk("resnet34", "imagenet", 0))


@pytest.mark.parametrize("text", ["rgb|scale01|normalize(imagenet)", "bgr|normalize(103.53,116.28,123.675;1,1,1)", "rgb|scale01"])
def test_a_red_image_reaches_the_network_as_the_pipeline_says(shapes, tmp_path, text):
    pipeline = parse(text)
    backbone = encoder("resnet18", pipeline=pipeline)
    _, model = detector(shapes, backbone, pipeline=pipeline)
    red = np.zeros((128, 128, 3), np.uint8)
    red[..., 0] = 255
    Image.fromarray(red).save(tmp_path / "red.png")
    checks.check_pixels(model, pipeline)
    checks.check_parity(model, backbone, backbone.trunk, pipeline, str(tmp_path / "red.png"))
    entered = model.preprocess_image([{"image": torch.from_numpy(pipeline.prepare(red)).permute(2, 0, 1)}]).tensor
    torch.testing.assert_close(entered, backbone.prepare(torch.from_numpy(pipeline.prepare(red)).permute(2, 0, 1)[None]))


def test_a_detector_that_reads_bgr_for_an_rgb_encoder_is_refused(shapes, tmp_path):
    backbone = encoder("resnet18")
    _, model = detector(shapes, backbone)
    model.input_format = "BGR"
    with pytest.raises(RingbenchError, match=r"INPUT.FORMAT BGR, the encoder needs RGB"):
        checks.check_pixels(model, PIPELINE)
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (128, 128, 3), dtype=np.uint8)).save(tmp_path / "noise.png")
    with pytest.raises(RingbenchError, match="differs from the encoder's"):
        checks.check_parity(model, backbone, backbone.trunk, PIPELINE, str(tmp_path / "noise.png"))


def test_other_pixel_statistics_are_refused(shapes):
    _, model = detector(shapes, encoder("resnet18"))
    with pytest.raises(RingbenchError, match=r"MODEL.PIXEL_MEAN"):
        checks.check_pixels(model, parse("rgb|scale01|normalize(half)"))


def test_a_pipeline_without_numbers_has_no_words_in_detectron2():
    with pytest.raises(UsageError, match="--pipeline"):
        detector_inputs(parse("rgb|scale01|normalize(dataset)"))


@pytest.mark.parametrize(
    ("freeze", "name", "moving"),
    [
        ("encoder", "shapes_c4", {"norm"}),
        ("trunk", "shapes_c4", {"norm", "res5"}),
        ("none", "shapes_c4", {"norm", "res5", "body"}),
        ("encoder", "shapes_fpn", {"fpn"}),
        ("trunk", "shapes_fpn", {"fpn", "res5"}),
    ],
)
def test_after_a_step_of_training_what_moved_is_what_was_asked(shapes, tmp_path, freeze, name, moving):
    backbone = encoder("resnet18")
    cfg = configuration(shapes, backbone, name, freeze, batch=2, iterations=1)
    cfg.OUTPUT_DIR, cfg.TEST.PRECISE_BN.ENABLED = str(tmp_path), False
    trainer = Trainer(cfg, torch.float32)
    detectors.fill(trainer.network, backbone.trunk)
    before, sha = copy.deepcopy(trainer.network.state_dict()), detectors.frozen_sha256(trainer.network)
    trainer.train()
    after = trainer.network.state_dict()
    changed = {key for key, value in after.items() if not torch.equal(value, before[key])}
    parts = {"body": "body.network", "res5": "res5.network", "norm": "roi_heads.res5.norm", "fpn": "backbone.fpn"}
    assert {part for part, where in parts.items() if any(where in key for key in changed)} == moving
    assert detectors.frozen_sha256(trainer.network) == sha


def test_with_the_encoder_frozen_no_tensor_of_it_takes_part_in_autograd(shapes):
    _, model = detector(shapes, encoder("resnet18"))
    learning = {name.split(".")[0] for name, p in model.named_parameters() if p.requires_grad}
    assert learning == {"proposal_generator", "roi_heads"}
    features = model.backbone(torch.rand(1, 3, 64, 64))["res4"]
    assert not features.requires_grad
    assert not detectors.head(model)(features).requires_grad


def test_frozen_stays_in_evaluation_whatever_is_asked(shapes):
    _, model = detector(shapes, encoder("resnet18"))
    model.train()
    assert model.training
    assert not any(module.training for module in detectors.bottom(model).body.modules())


def test_the_batch_norms_of_a_random_encoder_are_given_the_mean_statistics_of_training_images(shapes):
    trunk = random_trunk("resnet18", "imagenet", 0)
    backbone = FrozenBackbone(trunk, {"arch": "resnet18", "stem": "imagenet"})
    backbone = backbone.for_inputs(scale01=True, mean=PIPELINE.mean, std=PIPELINE.std)
    sha = trunk_sha256(trunk)
    images = shapes.splits["train"].images[:4]
    ready = checks.calibrated(backbone, PIPELINE, replace(shapes.splits["train"], images=images))
    assert trunk_sha256(trunk) == sha, "the backbone itself stays as it was"
    means, variances = [], []
    for image in images:
        pixels = np.asarray(Image.open(image["file_name"]))
        pixels = np.tile(pixels, (3, 3, 1))[:256, :256]
        x = (torch.from_numpy(pixels / 255.0) - torch.tensor(PIPELINE.mean)) / torch.tensor(PIPELINE.std)
        with torch.no_grad():
            first = trunk.conv1(x.float().permute(2, 0, 1)[None])[0].flatten(1)
        means.append(first.mean(1))
        variances.append(first.var(1))
    torch.testing.assert_close(ready.bn1.running_mean, torch.stack(means).mean(0), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(ready.bn1.running_var, torch.stack(variances).mean(0), rtol=1e-3, atol=1e-4)
    assert {norm.momentum for norm in ready.modules() if isinstance(norm, torch.nn.BatchNorm2d)} == {0.1}


# --- the configuration of a run


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_configuration_is_plain_detectron2(path):
    from detectron2.config import get_cfg

    cfg = get_cfg()
    cfg.merge_from_file(str(path))
    assert cfg.MODEL.BACKBONE.NAME.startswith("build_resnet")
    assert list(cfg.SOLVER.STEPS) == sorted(cfg.SOLVER.STEPS)


@pytest.mark.parametrize(
    ("name", "iterations", "steps", "warm_up"),
    [
        ("voc_c4_24k", 24_000, (18_000, 22_000), 100),
        ("coco_c4_1x", 90_000, (60_000, 80_000), 1000),
        ("coco_c4_2x", 180_000, (120_000, 160_000), 1000),
        ("coco_keypoint_fpn_1x", 90_000, (60_000, 80_000), 1000),
    ],
)
def test_schedules_are_those_of_mocos_set_up(name, iterations, steps, warm_up):
    solver = config.read(name).SOLVER
    assert (solver.IMS_PER_BATCH, solver.BASE_LR) == (16, 0.02)
    assert (iterations, steps, warm_up) == (solver.MAX_ITER, solver.STEPS, solver.WARMUP_ITERS)


def test_another_batch_changes_rate_length_steps_and_warm_up_together():
    solver = config.scaled(config.read("voc_c4_24k"), 4, None).SOLVER
    assert (solver.IMS_PER_BATCH, solver.BASE_LR, solver.MAX_ITER) == (4, 0.005, 96_000)
    assert (solver.STEPS, solver.WARMUP_ITERS) == ((72_000, 88_000), 400)
    assert solver.REFERENCE_WORLD_SIZE == 0, "or Detectron2 would scale once more"


def test_a_shortened_schedule_keeps_its_proportions():
    solver = config.scaled(config.read("coco_c4_1x"), None, 900).SOLVER
    assert (solver.MAX_ITER, solver.STEPS, solver.WARMUP_ITERS) == (900, (600, 800), 10)


def test_a_short_schedule_spends_no_more_on_batch_norm_statistics_than_on_training():
    full = config.read("coco_c4_1x").TEST.PRECISE_BN.NUM_ITER
    found = {n: config.scaled(config.read("coco_c4_1x"), None, n).TEST.PRECISE_BN.NUM_ITER for n in (1, 900)}
    assert found == {1: 1, 900: full}


@pytest.mark.parametrize("iterations", [1, 2, 3, 5])
def test_a_schedule_of_a_few_iterations_has_no_step_at_its_end(iterations):
    solver = config.scaled(config.read("shapes_c4"), None, iterations).SOLVER
    assert all(step < iterations for step in solver.STEPS)
    assert len(set(solver.STEPS)) == len(solver.STEPS)


def test_masks_and_keypoints_that_a_set_has_not_are_asked_for_in_vain(shapes):
    bare = replace(shapes, keypoints=None)
    with pytest.raises(UsageError, match="has no keypoints"):
        configuration(bare, encoder("resnet18"), "shapes_fpn")
    stripped = [{k: v for k, v in a.items() if k != "segmentation"} for a in shapes.splits["train"].annotations]
    split = replace(shapes.splits["train"], annotations=stripped)
    with pytest.raises(UsageError, match="has no masks"):
        configuration(replace(shapes, splits=shapes.splits | {"train": split}), encoder("resnet18"), "shapes_c4")


def changed(images, split: str, change):
    """The set with `change` made to each annotation of a split."""
    part = images.splits[split]
    annotations = [change(place, dict(annotation)) for place, annotation in enumerate(part.annotations)]
    return replace(images, splits=images.splits | {split: replace(part, annotations=annotations)})


def without_mask(place: int, annotation: dict) -> dict:
    return {key: value for key, value in annotation.items() if key != "segmentation" or place >= 3}


def test_training_objects_without_a_mask_are_left_out_of_training_on_masks(shapes):
    mixed = changed(shapes, "train", without_mask)
    learned, lacking = data.with_masks(mixed)
    assert lacking == 3 and learned.splits["train"].annotations == shapes.splits["train"].annotations[3:]
    assert learned.splits["test"] is shapes.splits["test"]
    assert configuration(mixed, encoder("resnet18")).INPUT.MASK_FORMAT == "polygon"
    crowd = changed(mixed, "train", lambda place, annotation: annotation | {"iscrowd": int(place < 3)})
    assert data.with_masks(crowd)[1] == 0, "nothing trains on a crowd"


def test_test_objects_without_a_mask_are_refused_before_training_on_masks_and_welcome_to_boxes(shapes):
    mixed = changed(shapes, "test", without_mask)
    n = len(shapes.splits["test"].annotations)
    with pytest.raises(UsageError, match=f"3 of {n} test annotations of image set 'shapes' have no mask .* boxes alone"):
        configuration(mixed, encoder("resnet18"))
    assert not configuration(mixed, encoder("resnet18"), "voc_c4_24k").MODEL.MASK_ON


@pytest.mark.parametrize("split", ["train", "test"])
def test_keypoints_of_which_none_is_visible_are_asked_for_in_vain(shapes, split):
    bare = changed(shapes, split, lambda place, annotation: annotation | {"keypoints": [0] * 15, "num_keypoints": 0})
    with pytest.raises(UsageError, match=f"no object with a visible keypoint in {split}"):
        configuration(bare, encoder("resnet18"), "shapes_fpn")


def test_crowds_whose_masks_are_run_lengths_leave_training_on_polygons(shapes):
    crowd, *others = shapes.splits["train"].annotations
    lengths = {"size": [1, 1], "counts": [0, 1]}

    def chosen(changes: dict) -> str:
        split = replace(shapes.splits["train"], annotations=[crowd | changes, *others])
        return configuration(replace(shapes, splits=shapes.splits | {"train": split}), encoder("resnet18")).INPUT.MASK_FORMAT

    assert chosen({}) == chosen({"iscrowd": 1, "segmentation": lengths}) == "polygon"
    assert chosen({"segmentation": lengths}) == "bitmask"


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"config": "coco_c4_3x"}, "no configuration .*did you mean"),
        ({"config": "coco_c4_1x", "freeze": "all"}, "freeze"),
        ({"config": "coco_c4_1x", "frezze": "trunk"}, 'unknown key "frezze"'),
        ({}, "lacks the key config"),
    ],
)
def test_settings_that_mean_nothing_are_refused_in_one_sentence(values, sentence):
    with pytest.raises(UsageError, match=sentence):
        settings(values)


# --- data


def test_detectron2_sees_the_boxes_classes_and_keypoints_of_the_set(shapes):
    split = shapes.splits["test"]
    records = data.records(split, shapes.category_ids)
    assert [record["file_name"] for record in records] == [image["file_name"] for image in split.images]
    truth = split.annotations[0]
    record = next(record for record in records if record["image_id"] == truth["image_id"])["annotations"][0]
    assert record["bbox"] == truth["bbox"]
    assert shapes.category_ids[record["category_id"]] == truth["category_id"]
    x, y, visible = truth["keypoints"][:3]
    assert record["keypoints"][:3] == [x + 0.5, y + 0.5, visible]
    assert sum(len(record["annotations"]) for record in records) == len(split.annotations)


def test_run_lengths_that_are_lists_become_those_detectron2_can_decode(shapes):
    from pycocotools import mask

    image = shapes.splits["test"].images[0]
    height, width = image["height"], image["width"]
    counts = [height, 2 * height, height * width - 3 * height]  # the second and third columns
    annotation = {"image_id": image["id"], "category_id": shapes.category_ids[0], "bbox": [1, 0, 2, height], "iscrowd": 0}
    annotation["segmentation"] = {"size": [height, width], "counts": counts}
    split = replace(shapes.splits["test"], images=[image], annotations=[annotation])
    (record,) = data.records(split, shapes.category_ids)
    decoded = mask.decode(record["annotations"][0]["segmentation"])
    assert decoded.sum() == 2 * height
    assert decoded[:, 1:3].all()


def test_a_second_set_of_the_same_name_takes_the_place_of_the_first(shapes):
    from detectron2.data import DatasetCatalog

    data.register(shapes)
    smaller = replace(shapes.splits["test"], images=shapes.splits["test"].images[:3])
    data.register(replace(shapes, splits=shapes.splits | {"test": smaller}))
    assert len(DatasetCatalog.get(data.name_of(shapes, "test"))) == 3


@pytest.mark.parametrize("name", ["shapes_c4", "shapes_fpn"])
@pytest.mark.parametrize("freeze", ["encoder", "none"])
def test_maps_from_which_regions_are_cut_are_float32_in_mixed_precision_too(shapes, name, freeze):
    """Detectron2 rounds the regions to the type of the map: in bfloat16 by as much as 4 pixels beyond 1,024."""
    _, model = detector(shapes, encoder("resnet18"), name, freeze)
    with torch.autocast("cpu", torch.bfloat16):
        assert {level.dtype for level in model.backbone(torch.rand(1, 3, 64, 64)).values()} == {torch.float32}


def test_a_schedule_without_drops_says_none(shapes):
    cfg = configuration(shapes, encoder("resnet18"), iterations=1)
    assert config.schedule(cfg) == "1 iterations of 4 images, learning rate 0.02, warm-up 0"
