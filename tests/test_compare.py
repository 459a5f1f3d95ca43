"""bench compare: the difference of two detectors, by the images that both were tested on."""

import json
import shutil

import pytest
from test_detection import bench, few_scenes, needs_detectron2, small  # noqa: F401 - fixtures

TWO = ("random_resnet18", "random_resnet34")


@needs_detectron2
def test_two_detectors_are_compared_on_the_images_of_both(few_scenes, small, tmp_path):  # noqa: F811
    own = "backbones:\n  random_resnet34: {title: x, arch: resnet34, source: random, seed: 1, pipeline: 'rgb|scale01'}\n"
    (tmp_path / "registry.yaml").write_text(own)
    results = tmp_path / "results"
    ours = ("--registry", tmp_path / "registry.yaml")
    run = ("--backbone", TWO[0], "--backbone", TWO[1], "--batch", 1, "--results", results)
    ran = bench(*ours, "run", *run, "--task", "shapes_det", "--task", "shapes_seg", "--iterations", 2)
    assert ran.exit_code == 0, ran.output

    told = bench(*ours, "compare", *TWO, "--task", "shapes_det", "--results", results, "--json")
    assert told.exit_code == 0, told.output
    found = json.loads(told.stdout)
    assert (found["backbones"], found["task"], found["seed"]) == (list(TWO), "shapes_det", 0)
    first, second = (
        json.loads((results / name / "shapes_det" / "shapes-c4-trunk+2it@1.seed0.json").read_text())["metrics"] for name in TWO
    )
    assert found["metrics"].keys() == first.keys() & second.keys() and "mask_AP" in found["metrics"]
    for metric, row in found["metrics"].items():
        assert row["values"] == [first[metric]["value"], second[metric]["value"]]
        assert row["difference"] == pytest.approx(row["values"][1] - row["values"][0])
        assert row["ci_low"] <= row["difference"] <= row["ci_high"] and row["n"] == 3

    shown = bench(*ours, "compare", *TWO, "--task", "shapes_seg", "--results", results).output.splitlines()
    assert shown[0].split() == ["shapes_seg,", "shapes-c4-trunk+2it@1,", "seed", "0,", "n", "3"]
    rows = [line.split() for line in shown if line.lstrip().startswith(("box_", "mask_"))]
    assert rows[0][0] == "mask_AP50", "the task's own number first"
    assert len(rows) == len(found["metrics"])

    folder = results / TWO[1] / "shapes" / "shapes-c4-trunk+2it@1.seed0"
    kept = folder / "predictions.json"
    for damage, code, sentence in (
        (lambda: kept.write_text("[]"), 1, "is not what the run wrote that was measured; `bench run --force` makes it again"),
        (kept.unlink, 3, "predictions.json is not here"),
        (lambda: shutil.rmtree(results / TWO[1] / "shapes_det"), 3, "random_resnet34 has no number of shapes_det with seed 0"),
    ):
        damage()
        told = bench(*ours, "compare", *TWO, "--task", "shapes_det", "--results", results)
        assert told.exit_code == code and sentence in told.output
    place = results / TWO[0] / "shapes_det"
    shutil.copy(place / "shapes-c4-trunk+2it@1.seed0.json", place / "shapes-c4-trunk+3it@1.seed0.json")
    told = bench(*ours, "compare", *TWO, "--task", "shapes_det", "--results", results)
    assert told.exit_code == 2 and "choose with --protocol: shapes-c4-trunk+2it@1, shapes-c4-trunk+3it@1" in told.output


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ((*TWO[:1], *TWO[:1], "--task", "digits_knn"), 2, "digits_knn keeps no predictions to compare image by image"),
        (("random_resnet18", "random_resnet5", "--task", "shapes_det"), 2, 'did you mean "random_resnet50"'),
        (("random_resnet18", "random_resnet50", "--task", "shapes_dat"), 2, 'did you mean "shapes_det"'),
    ],
)
def test_what_cannot_be_compared_is_told_in_a_sentence(arguments, code, sentence):
    told = bench("compare", *arguments)
    assert told.exit_code == code and sentence in told.output
