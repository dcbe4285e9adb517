// What Triton 2.51.0 said (record_kserve.py).
#pragma once

#include <string_view>

namespace retort::engines::kserve::recorded {

struct Answer {
  int status;
  std::string_view type;
  std::string_view header_length;  // empty: it has none
  std::string_view body;
};
// clang-format off

inline constexpr Answer kServer{200, "application/json", "", {
    "{\"name\":\"triton\",\"version\":\"2.51.0\",\"extensions\":[\"classification\",\"sequenc"
    "e\",\"model_repository\",\"model_repository(unload_dependents)\",\"schedule_policy\",\"m"
    "odel_configuration\",\"system_shared_memory\",\"cuda_shared_memory\",\"binary_tensor_dat"
    "a\",\"parameters\",\"statistics\",\"trace\",\"logging\"]}",
    285}};

inline constexpr Answer kIndex{200, "application/json", "", {
    "[{\"name\":\"faulty\",\"version\":\"1\",\"state\":\"READY\"},{\"name\":\"small\",\"versi"
    "on\":\"1\",\"state\":\"READY\"}]",
    96}};

inline constexpr Answer kModel{200, "application/json", "", {
    "{\"name\":\"small\",\"versions\":[\"1\"],\"platform\":\"python\",\"inputs\":[{\"name\":"
    "\"input_ids\",\"datatype\":\"INT32\",\"shape\":[-1]},{\"name\":\"positions\",\"datatype"
    "\":\"INT32\",\"shape\":[-1]},{\"name\":\"top_k\",\"datatype\":\"INT32\",\"shape\":[1]},{"
    "\"name\":\"prompt_length\",\"datatype\":\"INT32\",\"shape\":[1]}],\"outputs\":[{\"name\""
    ":\"given_logprobs\",\"datatype\":\"FP32\",\"shape\":[-1]},{\"name\":\"topk_ids\",\"datat"
    "ype\":\"INT32\",\"shape\":[-1,-1]},{\"name\":\"topk_logprobs\",\"datatype\":\"FP32\",\"s"
    "hape\":[-1,-1]},{\"name\":\"hidden_states\",\"datatype\":\"FP32\",\"shape\":[-1,8]},{\"n"
    "ame\":\"scores\",\"datatype\":\"FP32\",\"shape\":[1]}]}",
    563}};

inline constexpr Answer kConfiguration{200, "application/json", "", {
    "{\"name\":\"small\",\"platform\":\"\",\"backend\":\"python\",\"runtime\":\"\",\"version_"
    "policy\":{\"latest\":{\"num_versions\":1}},\"max_batch_size\":0,\"input\":[{\"name\":\"i"
    "nput_ids\",\"data_type\":\"TYPE_INT32\",\"format\":\"FORMAT_NONE\",\"dims\":[-1],\"is_sh"
    "ape_tensor\":false,\"allow_ragged_batch\":false,\"optional\":false,\"is_non_linear_forma"
    "t_io\":false},{\"name\":\"positions\",\"data_type\":\"TYPE_INT32\",\"format\":\"FORMAT_N"
    "ONE\",\"dims\":[-1],\"is_shape_tensor\":false,\"allow_ragged_batch\":false,\"optional\":"
    "false,\"is_non_linear_format_io\":false},{\"name\":\"top_k\",\"data_type\":\"TYPE_INT32"
    "\",\"format\":\"FORMAT_NONE\",\"dims\":[1],\"is_shape_tensor\":false,\"allow_ragged_batc"
    "h\":false,\"optional\":true,\"is_non_linear_format_io\":false},{\"name\":\"prompt_length"
    "\",\"data_type\":\"TYPE_INT32\",\"format\":\"FORMAT_NONE\",\"dims\":[1],\"is_shape_tenso"
    "r\":false,\"allow_ragged_batch\":false,\"optional\":true,\"is_non_linear_format_io\":fal"
    "se}],\"output\":[{\"name\":\"given_logprobs\",\"data_type\":\"TYPE_FP32\",\"dims\":[-1],"
    "\"label_filename\":\"\",\"is_shape_tensor\":false,\"is_non_linear_format_io\":false},{\""
    "name\":\"topk_ids\",\"data_type\":\"TYPE_INT32\",\"dims\":[-1,-1],\"label_filename\":\""
    "\",\"is_shape_tensor\":false,\"is_non_linear_format_io\":false},{\"name\":\"topk_logprob"
    "s\",\"data_type\":\"TYPE_FP32\",\"dims\":[-1,-1],\"label_filename\":\"\",\"is_shape_tens"
    "or\":false,\"is_non_linear_format_io\":false},{\"name\":\"hidden_states\",\"data_type\":"
    "\"TYPE_FP32\",\"dims\":[-1,8],\"label_filename\":\"\",\"is_shape_tensor\":false,\"is_non"
    "_linear_format_io\":false},{\"name\":\"scores\",\"data_type\":\"TYPE_FP32\",\"dims\":[1]"
    ",\"label_filename\":\"\",\"is_shape_tensor\":false,\"is_non_linear_format_io\":false}],"
    "\"batch_input\":[],\"batch_output\":[],\"optimization\":{\"priority\":\"PRIORITY_DEFAULT"
    "\",\"input_pinned_memory\":{\"enable\":true},\"output_pinned_memory\":{\"enable\":true},"
    "\"gather_kernel_buffer_threshold\":0,\"eager_batching\":false},\"instance_group\":[{\"na"
    "me\":\"small_0\",\"kind\":\"KIND_CPU\",\"count\":1,\"gpus\":[],\"secondary_devices\":[],"
    "\"profile\":[],\"passive\":false,\"host_policy\":\"\"}],\"default_model_filename\":\"mod"
    "el.py\",\"cc_model_filenames\":{},\"metric_tags\":{},\"parameters\":{\"weights\":{\"stri"
    "ng_value\":\"/weights\"},\"context_tokens\":{\"string_value\":\"256\"},\"max_top_k\":{\""
    "string_value\":\"64\"},\"vocab_rows\":{\"string_value\":\"400\"}},\"model_warmup\":[]}",
    2171}};

inline constexpr Answer kScores{200, "application/octet-stream", "347", {
    "{\"id\":\"retort-1\",\"model_name\":\"small\",\"model_version\":\"1\",\"outputs\":[{\"na"
    "me\":\"given_logprobs\",\"datatype\":\"FP32\",\"shape\":[3],\"parameters\":{\"binary_dat"
    "a_size\":12}},{\"name\":\"topk_ids\",\"datatype\":\"INT32\",\"shape\":[3,2],\"parameters"
    "\":{\"binary_data_size\":24}},{\"name\":\"topk_logprobs\",\"datatype\":\"FP32\",\"shape"
    "\":[3,2],\"parameters\":{\"binary_data_size\":24}}]}\031,\011\301\242 \000\301<\211\305"
    "\300p\001\000\000\266\000\000\000 \000\000\000\077\000\000\000\371\000\000\000\322\000"
    "\000\000\2665:\300\304\227H\300\304a3\300\222\0067\300'\373C\300*]f\300",
    407}};

inline constexpr Answer kHiddenStates{200, "application/octet-stream", "164", {
    "{\"id\":\"retort-1\",\"model_name\":\"small\",\"model_version\":\"1\",\"outputs\":[{\"na"
    "me\":\"hidden_states\",\"datatype\":\"FP32\",\"shape\":[3,8],\"parameters\":{\"binary_da"
    "ta_size\":96}}]}#\361\216\077\021\023>\077\007q\270\077\030\323\010\277\001%\226\277\274"
    "\310S\277\326X\252\277\3132\271\275^m\227\077\344\2556>\234\370\272\077\\\235Q>\244M\204"
    "\276O\367\375\077J\254\231\276-\031\014\077\225>\242\276\001U\271\277`y\217\077!&(\077w"
    "\004\027\276;\015\234\077Tj\304\077\230\247\000\277",
    260}};

inline constexpr Answer kRewards{200, "application/octet-stream", "154", {
    "{\"id\":\"retort-1\",\"model_name\":\"small\",\"model_version\":\"1\",\"outputs\":[{\"na"
    "me\":\"scores\",\"datatype\":\"FP32\",\"shape\":[1],\"parameters\":{\"binary_data_size\""
    ":4}}]}1\213\355\300",
    158}};

inline constexpr Answer kNoLength{500, "application/json", "", {
    "{\"error\":\"failed to parse the request JSON buffer: The document root must not be foll"
    "owed by other values. at 520\"}",
    115}};

inline constexpr Answer kRaised{500, "text/plain", "", {
    "{\"error\":\"no score today\"}",
    26}};

inline constexpr Answer kUnknown{404, "text/plain", "", {
    "{\"error\":\"Request for unknown model: 'zzz' is not found\"}",
    57}};
// clang-format on

}  // namespace retort::engines::kserve::recorded
