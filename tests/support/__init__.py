"""What several tests share: `from tests.support.living import lives`. A module that only one folder needs stands there.

`tests/` mirrors the code; `system/` plays whole daemons, `faults/` is the fault campaign, `examples/` runs what users see.

* Transport: `broker_stage` a broker core with a clock that is a number.
* Daemon: `api_world` the API for executors over a real broker; `serve_with_known_secret` a daemon with a secret that tests know.
* Run file and results: `run_files` a complete run file; `run_results` results with few fields; `example_runs` runs an example.
* Tasks, pure: `core_world` a scheduling core with simulated runners. On Ray: `runner_world` runners without an engine; `scheduling`
  a shared scheduler; `gate` tasks that wait for a test's orders; `ends` a listener of a batch; `second_node` another Ray node.
* Episodes: `in_process_commands` commands and results; `recorded_steps` steps, written and read; `stand_in_torch` torch over numpy.
* Language models: `text_servers` HTTP servers with faults; `text_world` one for whole games; `text_stage` interactors on it;
  `text_phases` phases with a model; `pool_world` an actor pool; `recorded_sessions` sessions of a model.
* Operating system: `living` whether a process is alive; `delegated_cgroup`; `full_disk`; `turns` how long the event loop is blocked.
* `user_code/`: environments and experiments that other processes import too, by their full names.
"""
