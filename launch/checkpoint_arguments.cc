#include "launch/checkpoint_arguments.h"

#include <CLI/CLI.hpp>

namespace retort::launch {

void CheckpointArguments::add_to(CLI::App& app, const Bind& on) {
  auto* model = app.add_subcommand("model", "checkpoints")->require_subcommand(1);
  add_init(model->add_subcommand("init", "a randomly initialised checkpoint"), on);
  add_export(model->add_subcommand("export", "a checkpoint as one file of llama.cpp's"), on);
  add_convert(model->add_subcommand("convert", "a checkpoint in another dtype or other shards"),
              on);
  add_merge(model->add_subcommand("merge", "an adapter added to its model's weights"), on);
  auto* vocab = app.add_subcommand("vocab", "vocabularies")->require_subcommand(1);
  add_vocab(vocab->add_subcommand("add", "a checkpoint with more tokens"), on);
  auto* tokenizer = app.add_subcommand("tokenizer", "tokenizers")->require_subcommand(1);
  add_train(tokenizer->add_subcommand("train", "byte-level BPE with a chat template"), on);
}

void CheckpointArguments::add_init(CLI::App* c, const Bind& on) {
  c->add_option("--arch", init_.arch, "llama | mistral | qwen2 | qwen3")->capture_default_str();
  c->add_option("--tokenizer", init_.tokenizer, "folder with a tokenizer")->required();
  c->add_option("--output", init_.output, "folder to write")->required();
  c->add_option("--hidden-size", init_.hidden_size)->capture_default_str();
  c->add_option("--intermediate-size", init_.intermediate_size, "0: about 8/3 of the hidden size");
  c->add_option("--num-hidden-layers", init_.num_hidden_layers)->capture_default_str();
  c->add_option("--num-attention-heads", init_.num_attention_heads)->capture_default_str();
  c->add_option("--num-key-value-heads", init_.num_key_value_heads,
                "0: as many as attention heads");
  c->add_option("--head-dim", init_.head_dim, "0: hidden size / heads");
  c->add_option("--max-position-embeddings", init_.max_position_embeddings)->capture_default_str();
  c->add_option("--vocab-size", init_.vocab_size, "rows of the embedding; 0: as the tokenizer");
  c->add_option("--initializer-range", init_.initializer_range)->capture_default_str();
  c->add_option("--rope-theta", init_.rope_theta)->capture_default_str();
  c->add_option("--tie-word-embeddings", init_.tie_word_embeddings, "true | false")
      ->capture_default_str();
  c->add_option("--dtype", init_.dtype)->capture_default_str();
  c->add_option("--seed", init_.seed)->capture_default_str();
  on(c, [this] { return run_model_init(init_); });
}

void CheckpointArguments::add_export(CLI::App* c, const Bind& on) {
  c->add_option("model", export_.model, "Hugging Face folder")->required();
  c->add_option("--output", export_.output, "file to write; replaced when it is complete")
      ->required();
  c->add_option("--format", export_.format, "gguf")->capture_default_str();
  c->add_option("--dtype", export_.dtype,
                "of matrices: f32 | f16 | bf16 | q8_0 (default: as the checkpoint)");
  c->add_option("--context-length", export_.context_length,
                "tokens of a sequence that the file admits; 0: max_position_embeddings");
  on(c, [this] { return run_model_export(export_); });
}

void CheckpointArguments::add_convert(CLI::App* c, const Bind& on) {
  c->add_option("model", convert_.model, "Hugging Face folder")->required();
  c->add_option("--output", convert_.output, "folder to write")->required();
  c->add_option("--dtype", convert_.dtype, "bf16 | fp16 | fp32 (default: as the checkpoint)");
  c->add_option("--max-shard-size", convert_.max_shard_size, "of the weights in one file")
      ->capture_default_str();
  on(c, [this] { return run_model_convert(convert_); });
}

void CheckpointArguments::add_merge(CLI::App* c, const Bind& on) {
  c->add_option("adapter", merge_.adapter, "folder of a PEFT adapter (LoRA)")->required();
  c->add_option("--output", merge_.output, "folder to write")->required();
  c->add_option("--base", merge_.base,
                "Hugging Face folder of the model; default: what adapter_config.json names");
  c->add_option("--dtype", merge_.dtype, "bf16 | fp16 | fp32 (default: as the model's file)");
  on(c, [this] { return run_model_merge(merge_); });
}

void CheckpointArguments::add_vocab(CLI::App* c, const Bind& on) {
  c->add_option("model", vocab_.model, "Hugging Face folder")->required();
  c->add_option("--tokens", vocab_.tokens, "new tokens; those that are there are passed over")
      ->required();
  c->add_flag("--special", vocab_.special, "they are no part of a text");
  c->add_option("--init", vocab_.init, "of their rows: mean | copy | zero | random")
      ->capture_default_str();
  c->add_option("--from", vocab_.from,
                "mean: a description instead of the token's own text; copy: the token to copy");
  c->add_option("--seed", vocab_.seed, "of --init random")->capture_default_str();
  c->add_option("--output", vocab_.output, "folder to write")->required();
  on(c, [this] { return run_vocab_add(vocab_); });
}

void CheckpointArguments::add_train(CLI::App* c, const Bind& on) {
  c->add_option("--data", train_.data, "JSONL files; every string in a row counts")->required();
  c->add_option("--vocab-size", train_.vocab_size)->capture_default_str();
  c->add_option("--output", train_.output, "folder to write")->required();
  on(c, [this] { return run_tokenizer_train(train_); });
}

}  // namespace retort::launch
