// The program `retort`: commands, flags and exit codes. Everything it does lives in the files it
// calls.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <iostream>

#include "base/descriptor_limit.h"
#include "base/end_process.h"
#include "base/error.h"
#include "base/options.h"
#include "base/printable.h"
#include "engines/traits.h"
#include "launch/backends/child_process.h"
#include "launch/backends/host_command.h"
#include "launch/checkpoint_arguments.h"
#include "launch/commands/attach.h"
#include "launch/commands/columns.h"
#include "launch/commands/commands.h"
#include "launch/commands/join.h"
#include "launch/commands/launch.h"
#include "launch/links/link_job.h"
#include "launch/links/link_process.h"
#include "launch/ranks/rank_command.h"
#include "launch/supervision/signal_catcher.h"
#include "launch/version.h"

namespace retort::launch {
namespace {

// One subcommand: its flags are bound to values that live as long as the parser.
class Program {
 public:
  Program()
      : app_("Train a language model against models that live in other processes.", "retort") {
    app_.set_version_flag("--version", version_text());
    app_.require_subcommand(1);
    add_launch();
    add_join();
    add_cache();
    add_status();
    add_eval();
    add_generate();
    add_chat();
    add_recipe_commands();
    add_doctor();
    add_probe();
    checkpoints_.add_to(
        app_, [this](CLI::App* c, std::function<int()> action) { on(c, std::move(action)); });
    add_data();
    add_role();
  }

  int run(int argc, char** argv) {
    if (argc > 1 && !is_command(argv[1])) return 2;
    try {
      app_.parse(argc, argv);
    } catch (const CLI::ParseError& e) {
      const int code = app_.exit(e);
      return code == 0 ? 0 : 2;
    }
    RETORT_CHECK(action_) << "a subcommand without an action";
    // Those that stop in good order take their signals themselves; the others end by them.
    const auto stops_in_order = {"launch", "join", "cache", "role", "host"};
    if (std::ranges::none_of(stops_in_order,
                             [this](const char* name) { return app_.got_subcommand(name); }))
      release_signals(kEndSignals);
    return action_();
  }

 private:
  // Whether a command line may begin with `word`; if not, standard error says what is near to it.
  bool is_command(const std::string& word) const {
    if (word.starts_with('-')) return true;
    std::vector<std::string> names;
    for (const CLI::App* command : app_.get_subcommands([](const CLI::App*) { return true; }))
      if (!command->get_group().empty() || command->get_name() == word)
        names.push_back(command->get_name());
    if (std::ranges::find(names, word) != names.end()) return true;

    const std::vector<std::string_view> views(names.begin(), names.end());
    const std::string near =
        word == "train" || word == "run" ? "launch" : nearest_name(word, views);
    std::fprintf(stderr, "error: retort has no command '%s'%s\nretort --help lists all\n",
                 word.c_str(), near.empty() ? "" : ("; did you mean '" + near + "'?").c_str());
    return false;
  }

  void on(CLI::App* command, std::function<int()> action) {
    command->callback([this, action = std::move(action)] { action_ = action; });
  }

  void add_launch() {
    auto* c = app_.add_subcommand(
        "launch", "run a recipe: start all role processes, show progress, exit when it is done");
    auto* recipe = c->add_option("recipe", launch_.recipe, "recipe file (YAML)");
    c->add_option("overrides", launch_.overrides, "key.path=value ...");
    auto* resume = c->add_flag("--resume", launch_.resume,
                               "continue the run in output_dir from its newest checkpoint");
    auto* overwrite =
        c->add_flag("--overwrite", launch_.overwrite, "delete what is in output_dir first")
            ->excludes(resume);
    auto* submit = c->add_flag("--submit", launch_.submit,
                               "as a job of Slurm (launch.backend: slurm), which starts it later");
    // Said by the script of such a job, not by people; not listed.
    c->add_flag("--submitted", launch_.submitted)->group("")->excludes(submit);
    auto* attach = c->add_option("--attach", attached_run_,
                                 "take over the run in this folder, whose launcher is gone");
    for (CLI::Option* other : {recipe, resume, overwrite, submit})
      attach->excludes(other);
    c->add_flag("--dry-run", launch_.dry_run, "print what to apply with backend: kubernetes")
        ->needs(recipe)
        ->excludes(submit);
    c->require_option(1, 0);
    on(c,
       [this] { return attached_run_.empty() ? run_launch(launch_) : run_attach(attached_run_); });
  }

  void add_join() {
    auto* c = app_.add_subcommand(
        "join", "become one rank of a run that a scheduler or any other program starts");
    c->add_option("recipe", join_.recipe, "recipe file (YAML); student/0 needs it");
    c->add_option("overrides", join_.overrides, "key.path=value ...");
    c->add_option("--role", join_.place.role, "or RETORT_ROLE; none: the rank counts all roles");
    c->add_option("--rank", join_.place.rank, "or RETORT_RANK, or what a scheduler sets");
    c->add_option("--rendezvous", join_.place.rendezvous, "HOST:PORT, or RETORT_RENDEZVOUS");
    c->add_option("--secret-file", join_.place.secret_file, "or RETORT_SECRET_FILE");
    c->add_option("--advertise", join_.place.advertise,
                  "host[:port] that others reach this process by, or RETORT_ADVERTISE");
    c->add_option("--output", join_.output, "the run's folder as this host sees it");
    c->add_option("--encryption", join_.encryption,
                  "auto | always | never, as the run's rpc.encryption; without a recipe");
    auto* resume = c->add_flag("--resume", join_.resume,
                               "continue the run in output_dir from its newest checkpoint");
    c->add_flag("--overwrite", join_.overwrite, "delete what is in output_dir first")
        ->excludes(resume);
    on(c, [this] { return run_join(join_); });
  }

  void add_cache() {
    auto* c = app_.add_subcommand(
        "cache", "keep what the teacher of a distillation says of each row, for many students");
    c->add_option("recipe", cache_.recipe, "recipe file (YAML)")->required();
    c->add_option("overrides", cache_.overrides, "key.path=value ...");
    c->add_option("--output", cache_.cache, "folder to write, or to go on with")->required();
    on(c, [this] { return run_cache(cache_); });
  }

  void add_status() {
    auto* c = app_.add_subcommand("status", "what a run is doing: its state and its processes");
    c->add_option("run", status_.run, "the run's folder (output_dir)")->required();
    c->add_flag("--watch", status_.watch, "again each second, until the run has ended");
    on(c, [this] { return run_status(status_); });
  }

  void add_eval() {
    auto* c = app_.add_subcommand(
        "eval", "loss and accuracy of a checkpoint on a data file, as one JSON line");
    c->add_option("--model", eval_.model, "Hugging Face folder")->required();
    c->add_option("--data", eval_.data, "JSONL file")->required();
    c->add_option("--output", eval_.output, "write per-sample token_ids, logps and targets here");
    c->add_option("--format", eval_.format, "how rows are read (default: by their keys)");
    c->add_option("--columns", columns_,
                  "canonical=column pairs, e.g. prompt=question completion=answer");
    c->add_option("--dtype", eval_.dtype, "float32 | bfloat16 (default: as the file)");
    c->add_option("--max-length", eval_.max_length, "tokens of a row")->capture_default_str();
    c->add_option("--batch-size", eval_.batch_size, "samples computed together")
        ->capture_default_str();
    c->add_flag("--exact-match", eval_.exact_match,
                "also generate greedily and compare the numeric answers");
    c->add_option("--max-new-tokens", eval_.max_new_tokens, "of a generated answer")
        ->capture_default_str();
    on(c, [this] {
      eval_.columns = parse_columns(columns_);
      return run_eval(eval_);
    });
  }

  void add_generate() {
    auto* c = app_.add_subcommand("generate", "batch generation from a file of prompts");
    c->add_option("--model", generate_.model, "Hugging Face folder")->required();
    c->add_option("--prompts", generate_.prompts, "JSONL file with prompts")->required();
    c->add_option("--output", generate_.output, "JSONL file to write")->required();
    c->add_option("--columns", columns_, "canonical=column pairs, e.g. prompt=question");
    c->add_option("--dtype", generate_.dtype, "float32 | bfloat16 (default: as the file)");

    // How tokens are drawn, and where a completion ends.
    models::SamplingOptions& sampling = generate_.sampling;
    c->add_option("--max-new-tokens", generate_.max_new_tokens)->capture_default_str();
    c->add_option("--min-new-tokens", generate_.min_new_tokens,
                  "tokens before which nothing ends a completion; 0: off")
        ->capture_default_str();
    c->add_option("--temperature", sampling.temperature, "0: greedy")->capture_default_str();
    c->add_option("--top-p", sampling.top_p)->capture_default_str();
    c->add_option("--top-k", sampling.top_k, "0: off")->capture_default_str();
    c->add_option("--min-p", sampling.min_p, "least share of the largest probability; 0: off")
        ->capture_default_str();
    c->add_option("--typical-p", sampling.typical_p,
                  "mass of the tokens whose -log p is nearest to the entropy; 1: off")
        ->capture_default_str();
    c->add_option("--repetition-penalty", sampling.repetition_penalty, "1: off")
        ->capture_default_str();
    c->add_option("--presence-penalty", sampling.presence_penalty,
                  "off each token that the completion has; 0: off")
        ->capture_default_str();
    c->add_option("--frequency-penalty", sampling.frequency_penalty,
                  "off a token for each time that the completion has it; 0: off")
        ->capture_default_str();
    c->add_option("--stop", generate_.stop,
                  "text that ends a completion; may be given several times")
        ->allow_extra_args(false);
    c->add_flag("--ignore-eos", generate_.ignore_eos, "end tokens do not end a completion");
    c->add_option("--max-new-tokens-column", generate_.max_new_tokens_column,
                  "column with each prompt's own --max-new-tokens");

    // How many are drawn, and from which noise.
    c->add_option("--num-generations", generate_.num_generations, "completions of each prompt")
        ->capture_default_str();
    c->add_option("--batch-size", generate_.batch_size, "sequences computed together")
        ->capture_default_str();
    c->add_option("--seed", sampling.seed)->capture_default_str();
    on(c, [this] {
      generate_.columns = parse_columns(columns_);
      return run_generate(generate_);
    });
  }

  void add_chat() {
    auto* c = app_.add_subcommand("chat", "talk to a checkpoint in the terminal");
    c->add_option("--model", chat_.model, "Hugging Face folder")->required();
    c->add_option("--system", chat_.system, "a system message that the conversation begins with");
    c->add_option("--dtype", chat_.dtype, "float32 | bfloat16 (default: as the file)");
    c->add_option("--max-new-tokens", chat_.max_new_tokens)->capture_default_str();
    c->add_option("--temperature", chat_.sampling.temperature, "0: greedy")->capture_default_str();
    c->add_option("--top-p", chat_.sampling.top_p)->capture_default_str();
    c->add_option("--seed", chat_.sampling.seed)->capture_default_str();
    on(c, [this] { return run_chat(chat_); });
  }

  void add_recipe_commands() {
    const auto add = [this](const char* name, const char* help, int (*run)(const RecipeCommand&)) {
      auto* c = app_.add_subcommand(name, help);
      c->add_option("recipe", recipe_.recipe, "recipe file (YAML)")->required();
      c->add_option("overrides", recipe_.overrides, "key.path=value ...");
      on(c, [this, run] { return run(recipe_); });
      return c;
    };
    add("audit", "show samples as the trainer sees them: coloured target mask, packing, counts",
        run_audit)
        ->add_option("--samples", recipe_.samples, "samples to print")
        ->capture_default_str();
    add("check", "self-checks before money is spent; non-zero on the first that fails", run_check)
        ->add_flag("--links", recipe_.links,
                   "also measure the connections between roles, where the recipe places them");
    auto* plan =
        add("plan", "roles, ranks, memory, bytes and seconds per step; starts nothing", run_plan);
    plan->add_flag("--json", recipe_.json);
    plan->add_option("--link-gbit", recipe_.link_gbit, "Gbit/s of a host's link, for the seconds")
        ->capture_default_str();
  }

  void add_doctor() {
    auto* c = app_.add_subcommand(
        "doctor", "whether this host, and those of a recipe, will do; what is wrong, what to do");
    c->add_option("recipe", doctor_.recipe, "recipe file (YAML); none: what holds of any run");
    c->add_option("overrides", doctor_.overrides, "key.path=value ...");
    c->add_flag("--json", doctor_.json);
    on(c, [this] { return run_doctor(doctor_); });
  }

  void add_probe() {
    auto* c = app_.add_subcommand(
        "probe", "what the answers of an inference engine mean, and whether a role can use them");
    c->add_option("url", probe_.url,
                  "where it listens: http://HOST:PORT; or a recipe, for all its engines")
        ->required();
    c->add_option("--role", probe_.role, "of a recipe: this one alone");
    const auto any = [](const engines::EngineTraits&) { return true; };
    c->add_option("--engine", probe_.engine, engines::engines_that(any) + ", at a URL");
    c->add_option("--tokenizer", probe_.tokenizer,
                  "folder with the tokenizer and the config.json of the model that is served");
    c->add_option("--model", probe_.model,
                  "folder with its weights: log-probabilities are compared with them");
    c->add_option("--served-model", probe_.served_model,
                  "its name at the server (default: the only one listed)");
    c->add_option("--api-key-env", probe_.api_key_env,
                  "the environment variable that holds the server's key");
    c->add_option("--ca-file", probe_.ca_file, "PEM file of the authorities that are trusted");

    // What it is to serve.
    auto* purpose =
        c->add_option("--for", probe_.purpose,
                      "draws_with_ratio | draws | given_log_probs | top_k | hidden_states | "
                      "rewards: fail unless it serves that");
    c->add_option("--temperature", probe_.sampling.temperature, "of draws, or of a top-k")
        ->capture_default_str()
        ->needs(purpose);
    c->add_option("--top-p", probe_.sampling.top_p, "of draws")
        ->capture_default_str()
        ->needs(purpose);
    c->add_option("--top-k", probe_.wanted_top_k, "tokens of a position, for top_k")
        ->capture_default_str()
        ->needs(purpose);
    c->add_option("--timeout", probe_.timeout_seconds, "seconds")->capture_default_str();
    c->add_flag("--json", probe_.json, "the contract as JSON");
    on(c, [this] { return run_probe(probe_); });
  }

  void add_data() {
    auto* data =
        app_.add_subcommand("data", "generated data for trying things out")->require_subcommand(1);
    auto* c = data->add_subcommand("arithmetic", "small word problems with a checkable answer");
    c->add_option("--output", arithmetic_.output, "JSONL file to write")->required();
    c->add_option("--first", arithmetic_.first, "number of the first problem")
        ->capture_default_str();
    c->add_option("--count", arithmetic_.count)->capture_default_str();
    c->add_option("--seed", arithmetic_.seed)->capture_default_str();
    c->add_flag("--preferences", arithmetic_.preferences,
                "prompt, chosen and rejected: the right solution, and one with a mistake");
    c->add_option("--mistakes", arithmetic_.mistakes_percent,
                  "percent of the rows whose completion is the one with a mistake")
        ->capture_default_str();
    on(c, [this] { return run_data_arithmetic(arithmetic_); });
  }

  // Started by the launcher, not by people; not listed.
  void add_role() {
    auto* c = app_.add_subcommand("role", "one process of a run (started by launch)")->group("");
    c->add_option("--run", role_.run)->required();
    c->add_option("--role", role_.role)->required();
    c->add_option("--rank", role_.rank)->required();
    c->add_option("--run-folder", role_.run_folder)->required();
    on(c, [this] {
      restore_library_path();
      return run_role(role_);
    });

    auto* host = app_.add_subcommand("host",
                                     "the processes of a run on this host, for a launcher on "
                                     "another one (started by launch, by ssh)")
                     ->group("");
    on(host, [] { return run_host(); });

    auto* link = app_.add_subcommand(links::kLinkRole,
                                     "one end of a connection that is measured (started by check)")
                     ->group("");
    on(link, [] {
      restore_library_path();
      return links::run_link_process();
    });
  }

  CheckpointArguments checkpoints_;  // before the parser, which refers to it
  CLI::App app_;
  std::function<int()> action_;
  Columns columns_;
  LaunchCommand launch_, cache_;
  std::string attached_run_;
  JoinCommand join_;
  StatusCommand status_;
  EvalCommand eval_;
  GenerateCommand generate_;
  ChatCommand chat_;
  RecipeCommand recipe_;
  DoctorCommand doctor_;
  ProbeCommand probe_;
  ArithmeticCommand arithmetic_;
  RoleCommand role_;
};

// The exit code; errors are written to standard error.
int run(int argc, char** argv) {
  try {
    raise_descriptor_limit();
    return Program().run(argc, argv);
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
