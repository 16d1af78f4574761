"""How tests are shared out among pytest-xdist's worker processes."""

from xdist.scheduler import LoadGroupScheduling


class CrashProofScheduling(LoadGroupScheduling):
    """`--dist=loadgroup` that ends when a worker process has crashed; pytest-xdist 3.8 hangs then for ever.

    A worker runs a test once it knows the next one. xdist puts the crashed worker's groups back into the queue, also those that
    are through; who takes one of these gets no test, and waits for a next one with its last. The test that crashed is not run again.
    """

    def remove_node(self, node):
        groups = self.assigned_work.pop(node)
        crashed = next((test for group in groups.values() for test, done in group.items() if not done), None)
        for name, group in groups.items():
            if rest := {test: False for test, done in group.items() if not done and test != crashed}:
                self.workqueue[name] = rest
        for other in self.assigned_work:
            self._reschedule(other)
        return crashed

    def _assign_work_unit(self, node):
        if not self.workqueue:  # at the start, another worker may have taken a second one
            self.assigned_work.setdefault(node, {})
            return
        super()._assign_work_unit(node)
        if self._pending_of(self.assigned_work[node]) < 2 and self.workqueue:
            self._assign_work_unit(node)
