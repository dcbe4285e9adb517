// The program `retort`: its commands, from the arguments to the exit code. What a command takes and
// does stands in its file in launch/commands.
#include <csignal>
#include <exception>
#include <iostream>
#include <optional>

#include "base/descriptor_limit.h"
#include "base/end_process.h"
#include "base/error.h"
#include "base/printable.h"
#include "launch/commands/command_line.h"
#include "launch/process/signal_catcher.h"
#include "launch/program/version.h"

namespace retort::launch {

// Each adds its command, and is defined at the end of the command's file.
using AddCommand = void(Command);
AddCommand add_launch, add_join, add_cache, add_status, add_eval, add_generate, add_chat, add_audit,
    add_check, add_plan, add_doctor, add_probe, add_model_init, add_model_export, add_model_convert,
    add_model_merge, add_vocab_add, add_tokenizer_train, add_data_arithmetic, add_role, add_host,
    add_link;

namespace {

// In the order in which --help lists them.
void add_commands(Command program) {
  add_launch(program);
  add_join(program);
  add_cache(program);
  add_status(program);
  add_eval(program);
  add_generate(program);
  add_chat(program);
  add_audit(program);
  add_check(program);
  add_plan(program);
  add_doctor(program);
  add_probe(program);

  Command model = program.group("model", "checkpoints");
  add_model_init(model);
  add_model_export(model);
  add_model_convert(model);
  add_model_merge(model);
  Command vocab = program.group("vocab", "vocabularies");
  add_vocab_add(vocab);
  Command tokenizer = program.group("tokenizer", "tokenizers");
  add_tokenizer_train(tokenizer);
  Command data = program.group("data", "generated data for trying things out");
  add_data_arithmetic(data);

  // Programs start these, not people.
  add_role(program);
  add_host(program);
  add_link(program);
}

// The exit code; errors are written to standard error.
int run(int argc, char** argv) {
  try {
    raise_descriptor_limit();
    CommandLine line("retort",
                     "Train a language model against models that live in other processes.",
                     version_text());
    add_commands(line.program());
    if (const std::optional<int> done = line.read(argc, argv)) return *done;
    if (line.on_signal() == OnSignal::kIsEnded) release_signals(kEndSignals);
    return line.run();
  } catch (const Error& e) {
    std::cerr << "retort: error: " << printable(e.what(), LineEnds::kKept) << "\n";
    return exit_code_for(e.code());
  } catch (const std::exception& e) {
    std::cerr << "retort: error: " << printable(e.what(), LineEnds::kKept) << "\n";
    return 1;
  }
}

}  // namespace
}  // namespace retort::launch

int main(int argc, char** argv) {
  retort::launch::hold_signals(retort::launch::kEndSignals);
  // a closed pipe and a file-size limit are errors of write(2), reported like any other
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  retort::end_process(retort::launch::run(argc, argv));
}
