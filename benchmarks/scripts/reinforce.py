"""REINFORCE on a cart pole of its own, after PyTorch's examples."""

import math
import random
from collections import deque

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.distributions import Categorical

torch.manual_seed(543)
random.seed(543)
np.random.seed(543)


class CartPole:
    def reset(self):
        self.state = np.random.uniform(-0.05, 0.05, size=4)
        return self.state

    def step(self, action):
        x, x_dot, theta, theta_dot = self.state
        force = 10.0 if action == 1 else -10.0
        temp = (force + 0.05 * theta_dot**2 * math.sin(theta)) / 1.1
        thetaacc = (9.8 * math.sin(theta) - math.cos(theta) * temp) / (
            0.5 * (4 / 3 - 0.1 * math.cos(theta) ** 2 / 1.1)
        )
        xacc = temp - 0.05 * thetaacc * math.cos(theta) / 1.1
        self.state = np.array(
            [
                x + 0.02 * x_dot,
                x_dot + 0.02 * xacc,
                theta + 0.02 * theta_dot,
                theta_dot + 0.02 * thetaacc,
            ]
        )
        return self.state, 1.0, bool(abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.2095)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = nn.Linear(4, 128)
        self.dropout = nn.Dropout(p=0.6)
        self.affine2 = nn.Linear(128, 2)
        self.saved_log_probs = []
        self.rewards = []

    def forward(self, x):
        x = self.affine1(x)
        x = self.dropout(x)
        x = F.relu(x)
        return F.softmax(self.affine2(x), dim=1)


env, policy = CartPole(), Policy()
optimizer = optim.Adam(policy.parameters(), lr=1e-2)
eps = np.finfo(np.float32).eps.item()


def select_action(state):
    state = torch.from_numpy(state).float().unsqueeze(0)
    probs = policy(state)
    m = Categorical(probs)
    action = m.sample()
    policy.saved_log_probs.append(m.log_prob(action))
    return action.item()


def finish_episode():
    R, policy_loss, returns = 0, [], deque()
    for r in policy.rewards[::-1]:
        R = r + 0.99 * R
        returns.appendleft(R)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + eps)
    for log_prob, R in zip(policy.saved_log_probs, returns, strict=True):
        policy_loss.append(-log_prob * R)
    optimizer.zero_grad()
    policy_loss = torch.cat(policy_loss).sum()
    policy_loss.backward()
    optimizer.step()
    del policy.rewards[:]
    del policy.saved_log_probs[:]
    return policy_loss.item()


running_reward, steps, episode = 10, 0, 0
while steps < 14000:
    state, ep_reward = env.reset(), 0
    for _ in range(500):
        action = select_action(state)
        state, reward, done = env.step(action)
        policy.rewards.append(reward)
        ep_reward += reward
        steps += 1
        if done:
            break
    episode += 1
    running_reward = 0.05 * ep_reward + 0.95 * running_reward
    loss = finish_episode()
    if episode % 20 == 0:
        print(
            f"Episode {episode}\tLast reward: {ep_reward:.2f}\tAverage reward: {running_reward:.2f}"
            f"\tloss {loss:.3f}"
        )
print("steps", steps)
