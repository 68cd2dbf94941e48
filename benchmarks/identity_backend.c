/* The cheapest model that the real Triton can serve: its first output is its first input.
 *
 * Built against Triton's C backend interface, so that comparing with it compares servers and not Python backends. Only what
 * is called here is declared; all handles are opaque.
 */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

typedef void *handle;
typedef void *failure;

failure TRITONBACKEND_RequestInputByIndex(handle request, uint32_t index, handle *input);
failure TRITONBACKEND_RequestOutputName(handle request, uint32_t index, const char **name);
failure TRITONBACKEND_InputProperties(handle input, const char **name, int *type, const int64_t **shape, uint32_t *rank,
                                      uint64_t *nbytes, uint32_t *buffers);
failure TRITONBACKEND_InputBuffer(handle input, uint32_t index, const void **address, uint64_t *nbytes, int *kind, int64_t *id);
failure TRITONBACKEND_ResponseNew(handle *response, handle request);
failure TRITONBACKEND_ResponseOutput(handle response, handle *output, const char *name, int type, const int64_t *shape,
                                     uint32_t rank);
failure TRITONBACKEND_OutputBuffer(handle output, void **address, uint64_t nbytes, int *kind, int64_t *id);
failure TRITONBACKEND_ResponseSend(handle response, uint32_t flags, failure error);
failure TRITONBACKEND_RequestRelease(handle request, uint32_t flags);
failure TRITONBACKEND_ModelInstanceReportStatistics(handle instance, handle request, bool success, uint64_t start,
                                                    uint64_t input_end, uint64_t output_start, uint64_t end);
failure TRITONBACKEND_ModelInstanceReportBatchStatistics(handle instance, uint64_t rows, uint64_t start, uint64_t input_end,
                                                         uint64_t output_start, uint64_t end);

enum { FINAL_RESPONSE = 1, RELEASE_ALL = 1, HOST = 0 };

static uint64_t monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void copy_input(handle input, uint32_t buffers, char *target) {
    for (uint32_t part = 0; part < buffers; part++) {
        const void *source;
        uint64_t nbytes;
        int kind = HOST;
        int64_t id = 0;
        TRITONBACKEND_InputBuffer(input, part, &source, &nbytes, &kind, &id);
        memcpy(target, source, nbytes);
        target += nbytes;
    }
}

static void answer(handle request) {
    handle input, output, response;
    const char *input_name, *output_name;
    const int64_t *shape;
    uint32_t rank, buffers;
    uint64_t nbytes;
    int type, kind = HOST;
    int64_t id = 0;
    void *target;
    TRITONBACKEND_RequestInputByIndex(request, 0, &input);
    TRITONBACKEND_InputProperties(input, &input_name, &type, &shape, &rank, &nbytes, &buffers);
    TRITONBACKEND_RequestOutputName(request, 0, &output_name);
    TRITONBACKEND_ResponseNew(&response, request);
    TRITONBACKEND_ResponseOutput(response, &output, output_name, type, shape, rank);
    TRITONBACKEND_OutputBuffer(output, &target, nbytes, &kind, &id);
    copy_input(input, buffers, target);
    TRITONBACKEND_ResponseSend(response, FINAL_RESPONSE, 0);
}

failure TRITONBACKEND_ModelInstanceExecute(handle instance, handle *requests, const uint32_t count) {
    uint64_t start = monotonic_ns();
    for (uint32_t i = 0; i < count; i++) answer(requests[i]);
    uint64_t end = monotonic_ns();
    for (uint32_t i = 0; i < count; i++) {
        TRITONBACKEND_ModelInstanceReportStatistics(instance, requests[i], true, start, start, end, end);
        TRITONBACKEND_RequestRelease(requests[i], RELEASE_ALL);
    }
    TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, count, start, start, end, end);
    return 0;
}
