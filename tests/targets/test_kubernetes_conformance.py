"""The Kubernetes target passes the suite for all targets, on a real API server."""

import pytest
from conformance import Conformance
from kube_harness import KubeHarness


class TestKubernetes(Conformance):
    @pytest.fixture
    def harness(self, on_kubernetes):
        return KubeHarness(on_kubernetes)
