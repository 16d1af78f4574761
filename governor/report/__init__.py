"""What a run was, on one page: its document of data, the HTML that shows it, and the live page of `governor view`."""
