// SPDX-License-Identifier: Apache-2.0
#include "expert_service/expert_pipeline.h"
