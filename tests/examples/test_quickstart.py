from pathlib import Path

import nbclient
import nbformat

NOTEBOOK = Path(__file__).parents[2] / "examples" / "quickstart.ipynb"


def test_quickstart_runs_and_plots(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    text = "".join(output.get("text", "") for output in outputs)
    assert "queueOffset: long" in text
    assert text.count("carrier") >= 4
    assert any("image/png" in output.get("data", {}) for output in outputs)
