// What a config.json says of transformers' *ForSequenceClassification models. Private to models/.
#pragma once

#include "models/config/config.h"
#include "models/config/config_fields.h"

namespace retort::models {

// Without labels if the config's architecture is another one. kInvalidArgument as ConfigFields.
SequenceClassifier parse_classifier(const ConfigFields& fields);
// Makes `json`, a config of the model without its head, that of a classifier: architecture, names
// of the labels, pad_token_id. Nothing, if `config` has no labels.
void write_classifier(ConfigJson& json, const ModelConfig& config);

}  // namespace retort::models
