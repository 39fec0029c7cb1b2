"""What stops an experiment, said in one message."""


class ExperimentError(Exception):
    """An experiment that cannot be run; the text names the file, every fault, and the mend."""
