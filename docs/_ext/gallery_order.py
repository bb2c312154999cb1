"""The order of the gallery."""


class FirstThingsFirst:
    """Sort the script for newcomers to the front, the others by name."""

    def __init__(self, folder):
        pass

    def __call__(self, name):
        return name != "plot_first_detection.py", name
