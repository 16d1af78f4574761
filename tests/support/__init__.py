"""What several tests share: `from tests.support.living import lives`. A module that only one folder needs stands there.

`tests/` mirrors the code; `system/` plays whole daemons (`deaths/`: what dies, freezes or is taken away), `faults/` is the fault campaign, `examples/` runs what users see.

* Transport: `broker_stage` a broker core with a clock that is a number.
* `daemon/`: `api_world` the API for executors over a real broker; `serve_with_known_secret` a daemon with a secret that tests know;
  `serving_script` a script with a `RunGovernor` of its own.
* Journal: `journal_steps` what a question costs.
* Run file and results: `run_files` a complete run file; `run_results` results with few fields; `reasons` without their place.
* `tasks/`: `core_world` a scheduling core with simulated runners; on Ray `runner_world` runners without an engine, `channel_world`
  the peers of a channel, `ray_episodes` phases of episodes, `scheduling` a shared scheduler, `gate` tasks that wait for a test's orders, `ends` a listener of a batch,
  `second_node` another Ray node, `agentlab_package` AgentLab from the index. `conductor_specs` what a conductor gets at its start.
* Episodes: `in_process_commands` commands and results; `recorded_steps` steps, written and read; `nested_spaces` values with parts; `stand_in_torch` torch over numpy.
* `pages/`: `report_documents` documents of reports and what a page has in it; `browser` a real Chromium; `example_runs` runs an example,
  `example_pages` looks at its pages.
* `from_index`: packages that the extra `test` does not have, in a temporary folder.
* `language_models/`: `text_servers` HTTP servers with faults; `text_world` one for whole games; `text_stage` interactors on it;
  `text_phases` phases with a model; `pool_world` an actor pool; `recorded_sessions` sessions of a model;
  `users_of_aievobox` what its users bring.
* Operating system: `living` whether a process is alive; `delegated_cgroup`; `full_disk`; `turns` how long the event loop is blocked.
* `user_code/`: environments and experiments that other processes import too, by their full names.
"""
