# vLLM's parsers of tool calls, taken out of its unpacked wheel, with stand-ins for what they import
# of its engine. For make_tool_call_goldens.py.
import dataclasses
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import os
import sys
import types


class Record:
    def __init__(self, **fields):
        self.__dict__.update(fields)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class FunctionCall(Record):
    def __init__(self, name, arguments, **more):
        if not isinstance(name, str) or not isinstance(arguments, str):
            raise ValueError("pydantic refuses it")
        super().__init__(name=name, arguments=arguments, **more)


@dataclasses.dataclass
class StreamState:
    tool_call_id_type: str = "random"
    history_tool_call_cnt: int = 0


class Parser:
    def _initialize_history_tool_call_cnt(self, request):
        pass


class ToolParser:
    def __init__(self, tokenizer, tools=None):
        self.model_tokenizer = tokenizer
        self.vocab = tokenizer.get_vocab()


# What is run as the wheel has it; all else of vLLM is a stand-in.
REAL = """vllm.tool_parsers.hermes_tool_parser vllm.tool_parsers.llama_tool_parser
vllm.tool_parsers.llama4_pythonic_tool_parser vllm.tool_parsers.utils vllm.parser.qwen3
vllm.parser.engine.events vllm.parser.engine.incremental_lexer vllm.parser.engine.parser_engine
vllm.parser.engine.parser_engine_config vllm.parser.engine.streaming_parser_engine
vllm.parser.engine.token_id_scanner""".split()
STAND_INS = dict(
    FunctionCall=FunctionCall,
    StreamState=StreamState,
    Parser=Parser,
    ToolParser=ToolParser,
    init_logger=lambda name: logging.getLogger("none"),
    is_mistral_tokenizer=lambda tokenizer: False,
    make_tool_call_id=lambda **kwargs: "c",
    VLLM_TOOL_PARSE_REGEX_TIMEOUT_SECONDS=10,
)


class Module(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = STAND_INS.get(name) or type(name, (Record,), {})
        setattr(self, name, made)
        return made


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, wheel):
        self.wheel = wheel

    def find_spec(self, name, path, target=None):
        root = name.split(".")[0]
        if root not in ("vllm", "openai", "partial_json_parser"):
            return None
        if name in REAL:
            file = os.path.join(self.wheel, *name.split(".")) + ".py"
            return importlib.util.spec_from_file_location(name, file)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return Module(spec.name)

    def exec_module(self, module):
        pass


def vllm_parsers(wheel, schemas):
    logging.getLogger("none").disabled = True
    sys.meta_path.insert(0, StandIns(wheel))
    loaded = {name: importlib.import_module(name) for name in REAL}
    tokenizer = types.SimpleNamespace(get_vocab=lambda: {"<|python_tag|>": 1})
    tools = []
    params = loaded["vllm.tool_parsers.utils"].ChatCompletionToolsParam
    for each in schemas:
        function = each.get("function", each)
        named = Record(name=function["name"], parameters=function["parameters"])
        tools.append(params(type="function", function=named))
    request = Record()
    qwen = loaded["vllm.parser.qwen3"].Qwen3Parser
    json_of = loaded["vllm.tool_parsers.hermes_tool_parser"].Hermes2ProToolParser
    llama = loaded["vllm.tool_parsers.llama_tool_parser"].Llama3JsonToolParser
    pythonic = loaded["vllm.tool_parsers.llama4_pythonic_tool_parser"].Llama4PythonicToolParser

    # A reasoning parser goes before them, so that they see what stands behind the thought.
    def behind_thought(turn):
        return turn.split("</think>", 1)[1] if "</think>" in turn else turn

    return dict(
        hermes=lambda t: json_of(tokenizer).extract_tool_calls(behind_thought(t), request),
        qwen3_xml=lambda t: qwen(tokenizer, tools).extract_tool_calls_from_content(
            behind_thought(t), request
        ),
        llama3_json=lambda t: llama(tokenizer).extract_tool_calls(t, request),
        pythonic=lambda t: pythonic(tokenizer).extract_tool_calls(t, request),
    )
