// Transposed Jacobians of successive recurrent steps, all in one launch; simulator.bodies.jacobian_rules defines them.
//
// The caller defines REAL, H (units), THREADS and MATRICES (per block). A thread computes one entry (i, j), whose weights it keeps in
// registers, of MATRICES matrices. `places` [m]: the step of each Jacobian. `count`: m B.

typedef long long Index;

#define ENTRY                                                              \
    const int entry = blockIdx.y * THREADS + threadIdx.x;                  \
    const int begin = blockIdx.x * MATRICES;                               \
    const int end = begin + MATRICES < count ? begin + MATRICES : count;   \
    if (entry >= H * H) return;                                            \
    const int i = entry / H, j = entry % H;

// W_hh^T diag(f'(h)). `states` [m, B, H]. `relu`: f is relu if nonzero, else tanh.
extern "C" __global__ void __launch_bounds__(THREADS)
schedcast_rnn_jacobians(const REAL* __restrict__ states, const REAL* __restrict__ weights, const int* __restrict__ places,
                       REAL* __restrict__ jacobians, int count, int samples, int relu)
{
    ENTRY
    const REAL weight = weights[j * H + i];
#pragma unroll 4
    for (int n = begin; n < end; n++) {
        const REAL state = states[(Index(places[n / samples]) * samples + n % samples) * H + j];
        const REAL slope = relu ? (state > 0 ? REAL(1) : REAL(0)) : 1 - state * state;
        jacobians[Index(n) * (H * H) + entry] = weight * slope;
    }
}

// Wang et al., appendix E. `before`, `news`, `of_hidden` [m, B, H]; `reset_update` [m, B, 2 H]; `weights` [3 H, H].
extern "C" __global__ void __launch_bounds__(THREADS)
schedcast_gru_jacobians(const REAL* __restrict__ before, const REAL* __restrict__ reset_update, const REAL* __restrict__ news,
                       const REAL* __restrict__ of_hidden, const REAL* __restrict__ weights, const int* __restrict__ places,
                       REAL* __restrict__ jacobians, int count, int samples)
{
    ENTRY
    const REAL by_reset = weights[j * H + i], by_update = weights[(H + j) * H + i], by_new = weights[(2 * H + j) * H + i];
#pragma unroll 2
    for (int n = begin; n < end; n++) {
        const Index row = Index(places[n / samples]) * samples + n % samples, at = row * H + j;
        const REAL r = reset_update[row * (2 * H) + j], z = reset_update[row * (2 * H) + H + j], fresh = news[at];
        const REAL slope = (1 - z) * (1 - fresh * fresh);
        REAL sum = by_reset * (slope * of_hidden[at] * (r * (1 - r)));
        sum += by_update * ((before[at] - fresh) * (z * (1 - z)));
        sum += by_new * (slope * r);
        jacobians[Index(n) * (H * H) + entry] = i == j ? sum + z : sum;
    }
}
