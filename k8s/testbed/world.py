"""One namespace as the controllers see it: copies of its objects, and the ways to change them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from k8s.testbed.client import MERGE, Client, Object, Refused
from k8s.testbed.mirror import Mirror

STRATEGIC = "application/strategic-merge-patch+json"  # lists of conditions are merged by type; core objects only
TRACKING = "batch.kubernetes.io/job-tracking"  # keeps a pod's object until its Job has counted it
FOREGROUND = "foregroundDeletion"
GROUPS = {
    "jobsets": "/apis/jobset.x-k8s.io/v1alpha2",
    "jobs": "/apis/batch/v1",
    "pods": "/api/v1",
    "configmaps": "/api/v1",
    "services": "/api/v1",
}


@dataclass
class Tally:
    """What a Job has counted: pods that have failed, by uid, and indexes that have succeeded. Their objects may be gone."""

    failed: dict[str, Object] = field(default_factory=dict)
    succeeded: set[int] = field(default_factory=set)


class World:
    """The objects of `namespace`; whoever writes sees at once what was written."""

    def __init__(self, client: Client, namespace: str, changed: Callable[[], None]) -> None:
        self.client, self.namespace = client, namespace
        self.mirrors = {kind: Mirror(client, self.path(kind), changed) for kind in GROUPS}
        self.tallies: dict[str, Tally] = {}  # by the Job's uid
        self.uncounted: set[str] = set()  # uids of pods that were deleted because their JobSet was suspended

    def path(self, kind: str, name: str = "") -> str:
        """Give the address of a collection, or of one object in it."""
        return f"{GROUPS[kind]}/namespaces/{self.namespace}/{kind}" + (f"/{name}" if name else "")

    def all(self, kind: str) -> list[Object]:
        """Give the objects of a kind, the oldest first."""
        return self.mirrors[kind].all()

    def owned(self, kind: str, owner: Object) -> list[Object]:
        """Give the objects of a kind that `owner` controls."""
        uid = owner["metadata"]["uid"]
        return [one for one in self.all(kind) if any(ref["uid"] == uid for ref in references(one))]

    def create(self, kind: str, body: Object) -> None:
        """Create an object; one of that name may be there already."""
        try:
            self.mirrors[kind].put(self.client.create(self.path(kind), body))
        except Refused as why:
            if why.reason != "AlreadyExists":
                raise

    def patch(self, kind: str, found: Object, body: Object, *, sub: str = "", way: str = MERGE) -> None:
        """Change an object, the one of the same uid only; it may be gone."""
        name, uid = found["metadata"]["name"], found["metadata"]["uid"]
        patch: Any = {**body, "metadata": {**body.get("metadata", {}), "uid": uid}}
        try:
            self.mirrors[kind].put(self.client.request("PATCH", self.path(kind, name) + sub, patch, kind=way))
        except Refused as why:
            if why.code not in (404, 409):
                raise

    def delete(self, kind: str, found: Object, *, foreground: bool = False) -> None:
        """Delete an object; it may be gone."""
        metadata = found["metadata"]
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": metadata["uid"]}}
        body["propagationPolicy"] = "Foreground" if foreground else "Background"
        try:
            answer = self.client.request("DELETE", self.path(kind, metadata["name"]), body)
        except Refused as why:
            if why.code not in (404, 409):
                raise
            return
        if answer.get("metadata", {}).get("deletionTimestamp"):
            self.mirrors[kind].put(answer)  # it goes when its finalizers, or its container, have ended

    def finalize(self, kind: str, found: Object, name: str) -> None:
        """Take one finalizer off an object."""
        left = [one for one in found["metadata"].get("finalizers", ()) if one != name]
        self.patch(kind, found, {"metadata": {"finalizers": left or None}})


def references(found: Object) -> list[Object]:
    """Give the object's owner references."""
    return list(found["metadata"].get("ownerReferences") or ())


def owner_reference(owner: Object) -> Object:
    """Give the reference that makes `owner` an object's controller."""
    metadata = owner["metadata"]
    given = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": metadata["name"], "uid": metadata["uid"]}
    return {**given, "controller": True, "blockOwnerDeletion": True}


def is_ending(found: Object) -> bool:
    """Say whether the object is being deleted."""
    return "deletionTimestamp" in found["metadata"]


def collect(world: World) -> None:
    """Do the garbage collector's work: what has lost its owner goes, and an owner deleted in the foreground goes after what it owns."""
    owners = {one["metadata"]["uid"] for kind in ("jobsets", "jobs") for one in world.all(kind)}
    for kind in ("jobs", "pods", "configmaps", "services"):
        for one in world.all(kind):
            known = [ref for ref in references(one) if ref["kind"] in ("JobSet", "Job")]
            orphan = known and not any(ref["uid"] in owners for ref in known) and not is_ending(one)
            if orphan and not any(_exists(world, ref) for ref in known):
                world.delete(kind, one)
    for kind in ("jobsets", "jobs"):
        for owner in world.all(kind):
            if FOREGROUND in owner["metadata"].get("finalizers", ()):
                _end_in_foreground(world, kind, owner)


def _exists(world: World, reference: Object) -> bool:
    """Ask the server itself: the copies may lag."""
    try:
        found = world.client.get(world.path(f"{reference['kind'].lower()}s", reference["name"]))
    except Refused as why:
        if why.code == 404:
            return False
        raise
    return bool(found["metadata"]["uid"] == reference["uid"])


def _end_in_foreground(world: World, kind: str, owner: Object) -> None:
    owned = {one: world.owned(one, owner) for one in ("jobs", "pods", "configmaps", "services")}
    for one, objects in owned.items():
        for found in objects:
            if not is_ending(found):
                world.delete(one, found, foreground=one == "jobs")
    uid = owner["metadata"]["uid"]
    left = [found for kind_ in owned for found in world.owned(kind_, owner)]
    if not any(ref.get("blockOwnerDeletion") for one in left for ref in references(one) if ref["uid"] == uid):
        world.finalize(kind, owner, FOREGROUND)
