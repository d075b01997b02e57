"""What the plot scripts share."""
import json
import os


def preset(model):
    """random:llama-3.2-1b@7 and a folder .../Llama-3.2-1B are the same model to a reader."""
    name = model.split(":", 1)[-1] if model.startswith("random:") else os.path.basename(
        model.rstrip("/"))
    return name.split("@")[0].lower()


def read_object(path):
    """The one JSON object of a file."""
    with open(path, encoding="utf-8") as file:
        data = json.load(file)
    if not isinstance(data, dict):
        raise ValueError(f"{path}: not one JSON object")
    return data
