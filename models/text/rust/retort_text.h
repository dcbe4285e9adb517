/* The C ABI of the Rust crate: tokenizers, chat templates, training, tables.
 *
 * Functions that return int32_t return 0 when done, 1 for an error and 2 for a caught panic; then
 * `error` holds a UTF-8 text to free and the other outputs are untouched. Nothing unwinds into the
 * caller. Handles may be used from any thread at once; they are immutable, but for RtTable, which
 * one thread uses at a time. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct { /* owned by the library: rt_string_free */
  uint8_t* data;
  size_t len;
} RtString;
typedef struct { /* borrowed; null data = absent, where allowed */
  const uint8_t* data;
  size_t len;
} RtSlice;
typedef struct { /* rt_tokens_free */
  int32_t* ids;
  uint32_t* offsets; /* begin, end in bytes of each token; null if not asked for */
  size_t len;
} RtTokens;
typedef struct {  /* rt_spans_free */
  uint64_t* data; /* begin, end in bytes of each span */
  size_t len;
} RtSpans;
typedef struct {
  int64_t vocab_size;
  int32_t eos, bos, pad; /* -1 if none */
} RtInfo;
typedef struct RtTokenizer RtTokenizer;
typedef struct RtTemplate RtTemplate;
typedef struct RtTextTemplate RtTextTemplate;
typedef struct RtTable RtTable;

void rt_string_free(RtString text);
void rt_tokens_free(RtTokens tokens);
void rt_spans_free(RtSpans spans);

/* config_json and special_map_json may be absent. */
int32_t rt_tokenizer_open(RtSlice tokenizer_json, RtSlice config_json, RtSlice special_map_json,
                          RtTokenizer** out, RtString* error);
void rt_tokenizer_free(RtTokenizer* tokenizer);
RtInfo rt_tokenizer_info(const RtTokenizer* tokenizer);
int32_t rt_tokenizer_encode(const RtTokenizer* tokenizer, RtSlice text, bool add_special_tokens,
                            bool with_offsets, RtTokens* out, RtString* error);
int32_t rt_tokenizer_decode(const RtTokenizer* tokenizer, const int32_t* ids, size_t len,
                            bool skip_special_tokens, RtString* out, RtString* error);
int32_t rt_tokenizer_id_to_token(const RtTokenizer* tokenizer, int32_t id, RtString* out,
                                 RtString* error);
int32_t rt_tokenizer_token_to_id(const RtTokenizer* tokenizer, RtSlice token, int32_t* out,
                                 RtString* error);
/* Entries with id < limit (limit <= 0: all) by id: id, length (4 bytes little-endian each), token,
 * special flag (1 byte). */
int32_t rt_tokenizer_vocabulary(const RtTokenizer* tokenizer, int64_t limit, RtString* out,
                                RtString* error);
/* Model without vocabulary, normaliser and pre-tokenizer as JSON with sorted keys. */
int32_t rt_tokenizer_processing(const RtTokenizer* tokenizer, RtString* out, RtString* error);
/* Where transformers 5 makes another tokenizer of the files by tokenizer_class; else empty. */
int32_t rt_tokenizer_class_difference(const RtTokenizer* tokenizer, RtString* out, RtString* error);

/* The chat templates in tokenizer_config.json by their names, as a JSON object of strings. */
int32_t rt_config_templates(RtSlice config_json, RtString* out, RtString* error);
/* The named special tokens of a folder as a JSON object of strings. */
int32_t rt_special_tokens(RtSlice config_json, RtSlice special_map_json, RtString* out,
                          RtString* error);
/* variables_json: an object of values that the template sees (bos_token, ...). day: what
 * strftime_now prints, as 2026-11-23; empty: the moment of each rendering. */
int32_t rt_template_open(RtSlice source, RtSlice variables_json, RtSlice day, RtTemplate** out,
                         RtString* error);
void rt_template_free(RtTemplate* chat);
bool rt_template_has_marks(const RtTemplate* chat);
/* assistant_spans: without marks, find the spans by rendering prefixes (add_generation_prompt is
 * then ignored). */
int32_t rt_template_render(const RtTemplate* chat, RtSlice messages_json, RtSlice variables_json,
                           bool add_generation_prompt, bool assistant_spans, RtString* out,
                           RtSpans* spans, RtString* error);

/* A text with places that variables fill, given as a JSON object; names_json lists all their names.
 * Another name, and one that is not given when it is printed, is an error. */
int32_t rt_text_template_open(RtSlice source, RtSlice names_json, RtTextTemplate** out,
                              RtString* error);
void rt_text_template_free(RtTextTemplate* text);
int32_t rt_text_template_render(const RtTextTemplate* text, RtSlice variables_json, RtString* out,
                                RtString* error);

/* tokenizer.json of a byte-level BPE; *reached is the size of its vocabulary. */
int32_t rt_train(const RtSlice* texts, size_t num_texts, const RtSlice* special_tokens,
                 size_t num_special_tokens, size_t vocab_size, int64_t* reached, RtString* out,
                 RtString* error);

/* A Parquet or Arrow file (IPC file or stream), known by its first bytes. left_out: the columns
 * whose type has no JSON text, "name (type), ..."; empty if there are none. */
int32_t rt_table_open(RtSlice path, RtTable** out, RtString* left_out, RtString* error);
void rt_table_free(RtTable* table);
/* The next rows as lines of JSON, about 1 MiB; empty after the last. */
int32_t rt_table_next(RtTable* table, RtString* out, RtString* error);

#ifdef __cplusplus
}
#endif
