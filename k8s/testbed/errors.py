"""What the test bed says when it cannot."""


class TestbedError(Exception):
    """The test bed was asked for something that cannot be, or something that should have worked did not."""

    __test__ = False


class Unavailable(TestbedError):
    """This machine cannot have the test bed: the reason, in words. Tests skip on it and on nothing else."""
