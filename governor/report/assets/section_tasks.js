// The runs of tasks, row by row.

register({
  id: "tasks",
  title: "Tasks",
  order: 80,
  has: (run) => run.tasks.total > 0,
  draw(root, run, context) {
    dataTable(root, run.tasks, context, { label: "Tasks" });
  },
});
