"""Q-learning on FrozenLake in one file, as it could stand in any repository: it knows nothing of Run Governor."""

import argparse
import json
import random
import time
import urllib.request

import gymnasium as gym
import numpy as np


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--total-timesteps", type=int, default=20_000)
    parser.add_argument("--learning-rate", type=float, default=0.5)
    parser.add_argument("--gamma", type=float, default=0.95)
    parser.add_argument("--map", help="URL of a file with the map, a row in each line")
    parser.add_argument("--output", default="metrics.json")
    return parser.parse_args()


if __name__ == "__main__":
    args = parse_args()
    random.seed(args.seed)
    rows = None
    if args.map:
        with urllib.request.urlopen(args.map) as answer:
            rows = answer.read().decode().split()
    env = gym.wrappers.RecordEpisodeStatistics(gym.make("FrozenLake-v1", desc=rows, is_slippery=False))
    q = np.zeros((env.observation_space.n, env.action_space.n))
    returns = []
    start = time.time()
    obs, _ = env.reset(seed=args.seed)
    env.action_space.seed(args.seed)
    for global_step in range(1, args.total_timesteps + 1):
        epsilon = max(0.05, 1 - 2 * global_step / args.total_timesteps)
        if random.random() < epsilon:
            action = env.action_space.sample()
        else:
            action = int(np.argmax(q[obs]))
        next_obs, reward, terminated, truncated, info = env.step(action)
        target = reward + args.gamma * q[next_obs].max() * (not terminated)
        q[obs, action] += args.learning_rate * (target - q[obs, action])
        obs = next_obs
        if terminated or truncated:
            returns.append(float(info["episode"]["r"]))
            obs, _ = env.reset()
        if global_step % 500 == 0:  # a progress bar, which is drawn over itself
            print(
                f"\r{global_step / args.total_timesteps:4.0%} of {args.total_timesteps} steps",
                end="",
                flush=True,
            )
        if global_step % 5000 == 0:
            sps = int(global_step / (time.time() - start))
            print(f"\nglobal_step={global_step}, episodic_return={np.mean(returns[-100:]):.2f}, SPS={sps}")
    env.close()
    with open(args.output, "w") as file:
        json.dump({"return_mean": float(np.mean(returns[-100:])), "episodes": len(returns)}, file)
