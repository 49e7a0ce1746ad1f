"""Calls as JSON between markers: Hermes, and the families that differ from it in nothing but the markers."""

from rollout_traces.decode.grammars.json_calls import MarkedJson

HERMES = MarkedJson(
    "hermes",
    "<tool_call>",
    "</tool_call>",
    needs=("<tool_call>",),
    excludes=("<function=", "<arg_key>", "<|tool_call>"),
)
"""`<tool_call>{"name": "f", "arguments": {}}</tool_call>`: also Qwen 2.5, Qwen 3, Granite 4 and many others"""

PHI = MarkedJson("phi", "<|tool_call|>", "<|/tool_call|>", needs=("<|/tool_call|>",))
"""`<|tool_call|>[{"name": "f", "arguments": {}}]<|/tool_call|>`"""

PHI_FUNCTOOLS = MarkedJson("phi_functools", "functools", "", needs=("functools[",))
"""`functools[{"name": "f", "arguments": {}}]`"""

GRANITE = MarkedJson("granite", "<|tool_call|>", "", needs=("<|tool_call|>",), excludes=("<|/tool_call|>",))
"""`<|tool_call|>[{"name": "f", "arguments": {}}]`, with no closing marker"""

GRANITE_FUNCTION = MarkedJson("granite_function", "<function_call>", "", needs=("<function_call>",))
"""`<function_call> {"name": "f", "arguments": {}}`, with no closing marker"""

NEMOTRON = MarkedJson("nemotron", "<TOOLCALL>", "</TOOLCALL>", needs=("<TOOLCALL>",))
"""`<TOOLCALL>[{"name": "f", "arguments": {}}]</TOOLCALL>`"""

MINIMAX_M1 = MarkedJson("minimax_m1", "<tool_calls>", "</tool_calls>", needs=("<tool_calls>",))
"""`<tool_calls>` with one JSON object a line, or with a list (Jamba)"""

INTERNLM = MarkedJson(
    "internlm", "<|action_start|><|plugin|>", "<|action_end|>", needs=("<|action_start|>", "<|plugin|>")
)
"""`<|action_start|><|plugin|>{"name": "f", "parameters": {}}<|action_end|>`"""

COHERE_ACTION = MarkedJson(
    "cohere_action",
    "<|START_ACTION|>",
    "<|END_ACTION|>",
    needs=("<|START_ACTION|>",),
    markers=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
)
"""`<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {}}]<|END_ACTION|>`"""

COHERE_COMMAND_R = MarkedJson("cohere_command_r", "Action: ```json", "```", needs=("Action:", "tool_name"))
"""Command R: `Action: ```json` then `[{"tool_name": "f", "parameters": {}}]` and three backticks"""

MARKED_JSON = (
    PHI,
    PHI_FUNCTOOLS,
    GRANITE,
    GRANITE_FUNCTION,
    NEMOTRON,
    MINIMAX_M1,
    INTERNLM,
    COHERE_ACTION,
    COHERE_COMMAND_R,
)
