"""What user code prints and logs, from a process of a run to `governor logs`.

`capture` sends the standard output and standard error of a process to *spools*, those of Python as records (`streams`);
`attribution` says what a thread is doing; `collector`, a thread of the daemon, turns the spools of each run into bounded
files of lines, which `reader` reads.
"""
