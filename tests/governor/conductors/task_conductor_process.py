"""A task conductor as a process: prepares, runs a graph with one task that hangs, and prints its reports.

Arguments: address, token path, run folder, import folder.
"""

import asyncio
import json
import os
import sys

import ray  # noqa: F401  # before its variables are set, as in a fork of the forkserver

from governor.conductors.conductor import CLOSE_SECONDS
from governor.conductors.task import TaskConductor
from governor.messages import (
    Done,
    PartEndedReport,
    StartSimulation,
    StartTasks,
    StopPartCommand,
    TaskSpec,
)
from governor.messages.link import RecordingLink
from tests.support.conductor_specs import conductor_spec


def show(**line_data):
    sys.stdout.write(json.dumps(line_data) + "\n")
    sys.stdout.flush()


class PrintingLink(RecordingLink):
    async def report(self, event):
        show(type=type(event).__name__, text=str(event))
        return await super().report(event)


async def main(address: str, token: str, run_folder: str, import_folder: str) -> None:
    spec = conductor_spec(
        run_folder, import_folder=import_folder, settings={"ray": {"address": address, "token_path": token}}
    )
    link = PrintingLink()
    conductor = TaskConductor(spec=spec, link=link)
    tasks = (TaskSpec(id="hung", call="deeds:sleep"),)
    early = await conductor.perform(StartTasks(phase=0, name="p", tasks=tasks, seed=0))
    detail = await conductor.prepare()
    show(type="prepared", detail=detail, early=early.code)
    wrong = await conductor.perform(
        StartSimulation(
            phase=0,
            name="",
            mode="eval",
            environment="",
            agents=(),
            episodes=1,
            workers=1,
            max_steps=None,
            episode_timeout=None,
            seed=0,
        )
    )
    cycle = (TaskSpec(id="a", call="m:f", depends_on=("a",)),)
    fault = await conductor.perform(StartTasks(phase=0, name="p", tasks=cycle, seed=0))
    show(type="refused", messages=[wrong.message, fault.message])
    quick = StartTasks(phase=2, name="q", tasks=(TaskSpec(id="quick", call="deeds:nothing"),), seed=0)
    assert await conductor.perform(quick) == Done()
    await link.next(PartEndedReport)
    assert await conductor.perform(quick) == Done(), "the same command, sent again when all is over"
    command = StartTasks(phase=3, name="p", tasks=tasks, seed=0)
    both = [conductor.perform(command), conductor.perform(command)]
    assert await asyncio.gather(*both) == [Done(), Done()], "the same command, sent again"
    assert await conductor.perform(quick) == Done(), "one of a phase before"
    asked = asyncio.ensure_future(asyncio.to_thread(sys.stdin.readline))
    await asyncio.wait({asked, conductor.failed}, return_when=asyncio.FIRST_COMPLETED)
    if conductor.failed.done():
        show(type="failed", text=conductor.failed.result())
        await asyncio.wait({asyncio.ensure_future(conductor.close())}, timeout=CLOSE_SECONDS)
        os._exit(1)
    if asked.result().strip() == "stop":
        await conductor.perform(StopPartCommand(phase=3, reason="asked to"))
        await link.next(PartEndedReport, after=len(link.events))
        ends = [event.phase for event in link.events if isinstance(event, PartEndedReport)]
        show(type="ends", phases=ends)
        await conductor.close()
        os._exit(0)


asyncio.run(main(*sys.argv[1:]))
