"""Tasks: a model, a loss, a decode and a metric each; the engine knows only their protocol."""

from __future__ import annotations

from rankless.errors import UserError
from rankless.recipe.schema import Recipe
from rankless.tasks.capabilities import capabilities
from rankless.tasks.custom import open_custom
from rankless.tasks.protocol import Task


def open_task(recipe: Recipe) -> Task:
    """The task that ``recipe.task`` names: ``detect``, ``classify``, or one of the user's own.

    The last are in :mod:`rankless.tasks.custom`.

    Raises:
        UserError: no such task, file, module or class.
    """
    if recipe.task == "detect":
        from rankless.tasks.detect import Detect

        return Detect(recipe)
    if recipe.task == "classify":
        from rankless.tasks.classify import Classify

        return Classify(recipe)
    return open_custom(recipe)


def resolve_recipe(recipe: Recipe) -> Recipe:
    """The recipe with nothing left that only this machine or the data can say, so that a run stands alone.

    Raises:
        UserError: a faulty cfg, or data that cannot be opened.
    """
    if recipe.task == "detect":
        from rankless.tasks.detect import Detect, resolve_detection
        from rankless.tasks.memory_check import refuse_giant_step

        task = Detect(recipe, class_names=())  # the faults that need no data are told here and now
        refuse_giant_step(recipe, task.size, task.spec.activations(task.size))
        _read_data(recipe)
        return resolve_detection(recipe)
    if recipe.task == "classify":
        from rankless.tasks.classify import Classify
        from rankless.tasks.memory_check import refuse_giant_step

        refuse_giant_step(recipe, Classify(recipe, class_names=()).size)
        _read_data(recipe)
    return recipe


def data_digest(recipe: Recipe) -> str | None:
    """What a checkpoint calls the training data; None where the data has no such name.

    Raises:
        UserError: data that cannot be opened.
    """
    from rankless.data.datasets.builtin import DIGITS
    from rankless.data.datasets.opening import open_annotations

    data = recipe.data
    if recipe.task not in ("detect", "classify"):
        return capabilities(open_task(recipe).training_data()).digest
    if data.root == DIGITS:
        return None
    return open_annotations(data.root, data.train, data.format, max_bad=data.max_bad).digest()


def _read_data(recipe: Recipe) -> None:
    """Read new data here, where a person sees how far it is and can end it; the ranks find it read.

    Raises:
        UserError: nothing there, or faults that stop a training.
    """
    from rankless.data.datasets.builtin import DIGITS
    from rankless.data.datasets.opening import open_annotations

    data = recipe.data
    faults: list[str] = []
    for split in dict.fromkeys((data.train, data.val)) if data.root != DIGITS else ():
        try:
            found = open_annotations(data.root, split, data.format, max_bad=data.max_bad)
        except UserError as error:
            # What both say, such as what to do, comes last and once.
            faults = [fault for fault in faults if fault not in error.problems] + [*error.problems]
            continue
        if recipe.task == "detect" and found.has_boxes and not len(found.boxes):
            faults.append(
                f"{data.root}: not one of the {len(found)} images of the split '{split}' has a box that "
                f"can be used; see what is wrong with: rankless data check {data.root}"
            )
    if faults:
        raise UserError(faults)
