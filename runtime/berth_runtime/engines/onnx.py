"""ONNX Runtime by its generative library. The folder is what the library's model builder makes."""

from __future__ import annotations

from typing import ClassVar

from berth_runtime.engines.served import ServedLibrary
from berth_runtime.spec import LaunchSpec


class OnnxRuntime(ServedLibrary):
    name: ClassVar[str] = "onnxruntime"
    package: ClassVar[str] = "onnxruntime_genai"
    distribution: ClassVar[str] = "onnxruntime-genai"
    server: ClassVar[str] = "onnx.py"
    formats: ClassVar[tuple[str, ...]] = ("onnx",)
    json_schema: ClassVar[bool] = True

    def environment(self, spec: LaunchSpec) -> dict[str, str]:
        # The library reports to its maker. The first variable ends the reports of use; the second, by which it knows that it
        # runs unattended, also ends the one that tells of the machine.
        return super().environment(spec) | {"ORT_DISABLE_TELEMETRY": "1", "CI": "1"}
