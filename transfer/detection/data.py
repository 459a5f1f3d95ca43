"""An AnnotatedSet in Detectron2's catalogues, its form of a data set."""

from collections import defaultdict
from dataclasses import replace

from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.structures import BoxMode
from pycocotools import mask

from imagesets.annotated import AnnotatedSet, AnnotatedSplit


def name_of(images: AnnotatedSet, split: str) -> str:
    """In the catalogues."""
    return f"{images.spec.name}/{split}"


def register(images: AnnotatedSet) -> None:
    """Put the splits into the catalogues, in place of what had their names."""
    for split, part in images.splits.items():
        enter(name_of(images, split), records(part, images.category_ids), images)


def enter(name: str, records: list[dict], images: AnnotatedSet) -> None:
    """One data set under `name`."""
    if name in DatasetCatalog.list():
        DatasetCatalog.remove(name)
        MetadataCatalog.remove(name)
    DatasetCatalog.register(name, lambda: records)
    metadata = MetadataCatalog.get(name)
    metadata.set(thing_classes=images.classes)
    metadata.set(thing_dataset_id_to_contiguous_id={key: i for i, key in enumerate(images.category_ids)})
    if images.keypoints:
        metadata.set(keypoint_names=list(images.keypoints.names), keypoint_flip_map=list(images.keypoints.flip_pairs))


def with_masks(images: AnnotatedSet) -> tuple[AnnotatedSet, int]:
    """The set without the training objects that have no mask, and how many these are: Detectron2 trains on masks of all objects
    of an image or of none. It leaves crowds out itself."""
    train = images.splits["train"]
    learned = [each for each in train.annotations if "segmentation" in each or each["iscrowd"]]
    fewer = replace(images, splits=images.splits | {"train": replace(train, annotations=learned)})
    return fewer, len(train.annotations) - len(learned)


def records(split: AnnotatedSplit, category_ids: list[int]) -> list[dict]:
    """One record for each image: classes counted from 0, masks that are not polygons as compressed run lengths."""
    numbers, on_image = {key: i for i, key in enumerate(category_ids)}, defaultdict(list)
    sizes = {image["id"]: (image["height"], image["width"]) for image in split.images}
    for annotation in split.annotations:
        record = {
            "bbox": annotation["bbox"],
            "bbox_mode": BoxMode.XYWH_ABS,
            "category_id": numbers[annotation["category_id"]],
            "iscrowd": annotation.get("iscrowd", 0),
        }
        if (shape := annotation.get("segmentation")) is not None:
            if isinstance(shape, dict) and isinstance(shape["counts"], list):
                shape = mask.frPyObjects(shape, *sizes[annotation["image_id"]])
            record["segmentation"] = shape
        if (points := annotation.get("keypoints")) is not None:
            # COCO counts pixels, Detectron2 measures from the corner of the image: the middle of pixel 0 is at 0.5
            record["keypoints"] = [value + 0.5 if i % 3 < 2 else value for i, value in enumerate(points)]
        on_image[annotation["image_id"]].append(record)
    return [
        {
            "file_name": image["file_name"],
            "height": image["height"],
            "width": image["width"],
            "image_id": image["id"],
            "annotations": on_image[image["id"]],
        }
        for image in split.images
    ]
