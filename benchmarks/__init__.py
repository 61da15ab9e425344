"""What headrace costs: each benchmark prints one JSON line a figure, with its plain counterpart from the same run."""
