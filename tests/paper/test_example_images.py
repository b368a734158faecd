"""The original data of IRMG, as the figures show them."""

import torch

from cirm.data.downloads import load_images_of_source
from cirm.paper.example_images import (
    ORIGINAL_LABELS,
    ColoredWithoutClasses,
    collect_example_images,
)


def test_images_of_a_class_that_is_left_out_appear_nowhere():
    train, train_classes, test, test_classes = load_images_of_source("digits")
    dataset = ColoredWithoutClasses("digits", left_out=(8,))
    problem = dataset.draw_problem((0,))
    kept = int((train_classes != 8).sum()), int((test_classes != 8).sum())
    assert kept < (len(train), len(test))
    shown = [len(e.inputs.grey) for e in (*problem.train, *problem.test)]
    assert shown == [kept[0], kept[0], kept[1]]
    for environment, images, classes in (
        (problem.train[0], train, train_classes),
        (problem.test[0], test, test_classes),
    ):
        eights = {bytes(image.numpy()) for image in images[classes == 8]}
        rows = environment.inputs.rows[0]
        assert not eights & {bytes(environment.inputs.grey[r].numpy()) for r in rows}


def test_the_label_is_that_of_irmg_except_for_a_quarter_that_is_flipped():
    ones = ORIGINAL_LABELS["digits"][0]
    classes = load_images_of_source("digits").test_labels
    dataset = ColoredWithoutClasses("digits", labels=",".join(map(str, ones)))
    labels = dataset.draw_problem((0,)).test[0].targets[0]
    agree = (labels == torch.isin(classes, torch.tensor(ones)).long()).float().mean()
    assert 0.7 < agree < 0.8
    images = collect_example_images(dataset, 0)
    assert [block.name for block in images.blocks] == ["train-1", "train-2", "test"]
