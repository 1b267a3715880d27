"""The container of a node, in pyxis' words (SLURM's plugin for enroot)."""

from __future__ import annotations

from launcher.config.schema import Experiment
from launcher.plan.slurm import imported_file, pyxis_image
from launcher.render import env


def container(experiment: Experiment) -> dict[str, object] | None:
    """launch.json's `container`; None without an image.

    `env` names every variable that we set, secrets too: the image's own value of a variable wins over the job's unless
    --container-env names it. `file`: where the image is imported to once; null = each node imports it by itself.
    """
    wanted = experiment.container
    if wanted.image is None:
        return None
    return {
        "image": pyxis_image(wanted.image),
        "file": imported_file(wanted.image, wanted.import_folder) if wanted.import_folder else None,
        "mounts": list(wanted.mounts),
        "workdir": wanted.workdir,
        "env": sorted({*env.variables(experiment), *experiment.env.secrets}),
    }
